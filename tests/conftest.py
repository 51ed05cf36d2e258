"""Fixtures for every test: the real servers, started when the first test asks for them and stopped at the end.

Servers that run already are used instead when EVENKEEL_KAFKA_BOOTSTRAP_SERVERS or EVENKEEL_DATABASE_URL is set:
``evenkeel stack up --servers`` in one shell makes test runs in another start at once.
"""

import gc
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

# gRPC's fork handlers wake its threads in every process that tests fork, servers among them, and some of those crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Small sums on a pool of threads that wait for one another take up to 70 times as long beside other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background jobs have it ignored, and every process that a test starts and interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

from evenkeel.stack.kafka.node import Kafka
from evenkeel.stack.kafka.topics import WantedTopic, apply_topics
from evenkeel.stack.paths import stack_folder
from evenkeel.stack.postgres.databases import upgrade_database
from evenkeel.stack.postgres.server import Postgres
from evenkeel.stack.processes.watchdog import Watchdog
from tests.databases import create_database, drop_database, unique_database_name

# What tests before have left in cycles, channels of gRPC among it, waits for threads that a fork does not have.
os.register_at_fork(after_in_child=gc.freeze)
# By itself structlog draws an exception with all that the variables of its frames hold: five seconds of a processor for
# one of a detector.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
# Every run has the same examples and looks at no clock: a property fails because of a change, or not at all.
# Whoever hunts for counterexamples gets other ones each time: pytest --hypothesis-profile=hunt tests/unit/layouts
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("hunt", settings.get_profile("same"), derandomize=False, max_examples=1000)
settings.register_profile("mutants", settings.get_profile("same"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("same")

SERVER_FIXTURES = frozenset(
    {
        "kafka_bootstrap",
        "new_topic",
        "database_server_url",
        "database_url",
        "fresh_database_url",
        "empty_database_url",
        "own_kafka",
        "own_postgres",
    }
)
NUM_PARTITIONS = 4
"""Fewer than usual: each takes a broker's time to make and to begin to read."""
SERVER_MARKERS = frozenset({"integration", "e2e"})
MIGRATED_TEMPLATE = "evenkeel_test_template"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs servers says so: else ``-m "not integration"`` would start them."""
    for item in items:
        used = SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        marked = SERVER_MARKERS.intersection(mark.name for mark in item.iter_markers())
        if used and not marked:
            raise pytest.UsageError(f"{item.nodeid} uses {', '.join(sorted(used))}: mark it integration or e2e")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: to look through it for garbage again and again is a tenth of some tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(scope="session")
def _stack_watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    watchdog.start()
    yield watchdog
    watchdog.stop()


@pytest.fixture(scope="session")
def _stack_test_folder() -> Iterator[Path]:
    folder = stack_folder(f"test-{os.getpid()}-{uuid.uuid4().hex[:6]}")
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka_bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """``host:port`` of a real Kafka with all topics; shared by the session, so use your own job ids and groups."""
    existing = os.environ.get("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS")
    if existing:
        apply_topics(existing, num_partitions=NUM_PARTITIONS)
        yield existing
        return
    folder: Path = request.getfixturevalue("_stack_test_folder")
    server = Kafka(folder / "kafka", request.getfixturevalue("_stack_watchdog"))
    try:
        server.start()
        apply_topics(server.bootstrap_servers, num_partitions=NUM_PARTITIONS)
        yield server.bootstrap_servers
    finally:
        server.stop(grace_seconds=0)


@pytest.fixture
def new_topic(kafka_bootstrap: str) -> Callable[..., str]:
    """``new_topic(num_partitions=1)`` makes a topic of one's own and returns its name; the broker makes none."""

    def make(num_partitions: int = 1) -> str:
        name = f"test.{uuid.uuid4().hex}"
        apply_topics(kafka_bootstrap, [WantedTopic(name=name, num_partitions=num_partitions)])
        return name

    return make


@pytest.fixture(scope="session")
def database_server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a PostgreSQL server, in the name of a user who may create databases."""
    existing = os.environ.get("EVENKEEL_DATABASE_URL")
    if existing:
        yield existing
        return
    folder: Path = request.getfixturevalue("_stack_test_folder")
    server = Postgres(folder / "postgres", request.getfixturevalue("_stack_watchdog"))
    try:
        server.start()
        yield server.database_url
    finally:
        server.stop(grace_seconds=0)


@pytest.fixture(scope="session")
def _migrated_template(database_server_url: str) -> Iterator[str]:
    """Name of a migrated database that is only ever copied."""
    name = unique_database_name(MIGRATED_TEMPLATE)
    upgrade_database(create_database(database_server_url, name))
    yield name
    drop_database(database_server_url, name)


@pytest.fixture(scope="session")
def database_url(database_server_url: str, _migrated_template: str) -> Iterator[str]:
    """Address of a migrated database, shared by the session."""
    name = unique_database_name("evenkeel_test_session")
    yield create_database(database_server_url, name, template=_migrated_template)
    drop_database(database_server_url, name)


@pytest.fixture
def fresh_database_url(database_server_url: str, _migrated_template: str) -> Iterator[str]:
    """Address of a migrated database of one's own, dropped after the test."""
    name = unique_database_name("evenkeel_test")
    yield create_database(database_server_url, name, template=_migrated_template)
    drop_database(database_server_url, name)


@pytest.fixture
def empty_database_url(database_server_url: str) -> Iterator[str]:
    """Address of a database of one's own with nothing in it: for tests of the migrations."""
    name = unique_database_name("evenkeel_test_empty")
    yield create_database(database_server_url, name)
    drop_database(database_server_url, name)


@pytest.fixture
def own_kafka(_stack_test_folder: Path, _stack_watchdog: Watchdog) -> Iterator[Kafka]:
    """A broker of one's own (2 s) to be stopped, killed and started again: it comes back on the same port."""
    server = Kafka(_stack_test_folder / f"kafka-{uuid.uuid4().hex[:6]}", _stack_watchdog)
    try:
        server.start()
        apply_topics(server.bootstrap_servers, num_partitions=NUM_PARTITIONS)
        yield server
    finally:
        server.stop(grace_seconds=0)


@pytest.fixture
def own_postgres(_stack_test_folder: Path, _stack_watchdog: Watchdog) -> Iterator[Postgres]:
    """A migrated server of one's own (2 s) to be stopped, killed and started again: it comes back on the same port."""
    server = Postgres(_stack_test_folder / f"postgres-{uuid.uuid4().hex[:6]}", _stack_watchdog)
    try:
        server.start()
        upgrade_database(server.database_url)
        yield server
    finally:
        server.stop(grace_seconds=0)
