"""The fixtures' servers are real: topics exist, records come back, databases are apart from one another."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from evenkeel.contracts.topics import BATCHES, PROFILES, TOPICS
from evenkeel.stack.kafka.topics import WantedTopic, apply_topics, check_topics, wanted_topics
from evenkeel.stack.paths import stack_folder
from evenkeel.stack.postgres.server import Postgres
from evenkeel.stack.processes.watchdog import Watchdog
from tests.databases import create_database, drop_database, unique_database_name

pytestmark = pytest.mark.integration


def test_topics_of_the_table_exist_with_their_settings_and_applying_again_creates_nothing(kafka_bootstrap: str) -> None:
    assert check_topics(kafka_bootstrap) == ()
    assert apply_topics(kafka_bootstrap) == ()


def test_check_reports_a_topic_with_another_number_of_partitions(
    kafka_bootstrap: str, new_topic: Callable[..., str]
) -> None:
    name = new_topic(num_partitions=3)
    (found,) = check_topics(kafka_bootstrap, [WantedTopic(name=name, num_partitions=2)])
    assert (found.topic, found.what, found.wanted, found.found) == (name, "partitions", "2", "3")


def test_a_topic_that_comes_later_gets_as_many_partitions_as_the_others_have(
    kafka_bootstrap: str, new_topic: Callable[..., str]
) -> None:
    wanted = [WantedTopic(name=new_topic(num_partitions=3)), WantedTopic(name=f"test.{uuid.uuid4().hex}")]
    assert apply_topics(kafka_bootstrap, wanted) == (wanted[1].name,)
    assert check_topics(kafka_bootstrap, [wanted[0], replace(wanted[1], num_partitions=3)]) == ()


def test_every_consumed_topic_has_a_dead_letter_topic() -> None:
    names = {topic.name for topic in wanted_topics()}
    assert {topic.dead_letter_name for topic in TOPICS if topic.consumers} <= names
    assert {topic.name for topic in TOPICS} <= names
    assert (
        next(topic for topic in wanted_topics() if topic.name == PROFILES.name).settings["cleanup.policy"] == "compact"
    )


@pytest.mark.asyncio
async def test_a_record_comes_back_with_its_key(kafka_bootstrap: str) -> None:
    job_id = f"job-{uuid.uuid4().hex}".encode()
    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=True) as producer:
        await producer.send_and_wait(BATCHES.name, b"value", key=job_id)
    async with AIOKafkaConsumer(
        BATCHES.name, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async for record in consumer:
            if record.key == job_id:
                assert record.value == b"value"
                break


MAKES_A_CLUSTER = """
import sys
from pathlib import Path
from evenkeel.stack.postgres.server import Postgres
from evenkeel.stack.processes.watchdog import Watchdog
from tests.databases import create_database, drop_database, unique_database_name
Postgres(Path(sys.argv[1]), Watchdog()).start()
"""


def test_a_cluster_whose_making_was_killed_is_made_anew() -> None:
    folder, watchdog = stack_folder(f"test-{uuid.uuid4().hex[:8]}"), Watchdog()
    making = subprocess.Popen([sys.executable, "-c", MAKES_A_CLUSTER, folder], start_new_session=True)
    deadline = time.monotonic() + 200.0
    while not list(folder.glob("*/data/PG_VERSION")):  # which comes long before the rest
        assert making.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(making.pid, signal.SIGKILL)
    making.wait()
    server = Postgres(folder, watchdog)
    watchdog.start()
    try:
        server.start()
        with psycopg.connect(server.database_url) as connection:
            assert connection.execute("SELECT count(*) FROM pg_stat_activity").fetchone() is not None
        assert {path.name for path in folder.iterdir()} == {"data", "password", "postgres.log"}
    finally:
        server.stop(grace_seconds=0)
        watchdog.stop()
        shutil.rmtree(folder)


def test_databases_are_apart_from_one_another(database_server_url: str) -> None:
    names = [unique_database_name("evenkeel_test") for _ in range(2)]
    first, second = (create_database(database_server_url, name) for name in names)
    try:
        with psycopg.connect(first) as connection:
            connection.execute("CREATE TABLE only_here (x int)")
        with psycopg.connect(second) as connection:
            assert connection.execute("SELECT to_regclass('only_here')").fetchone() == (None,)
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            version = connection.execute("SHOW server_version").fetchone()
            assert version is not None
            assert version[0].startswith("18")
    finally:
        for name in names:
            drop_database(database_server_url, name)
