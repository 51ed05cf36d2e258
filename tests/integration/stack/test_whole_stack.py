"""The whole stack: ready when start returns, whole again after a service was killed, gone after stop."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest

from evenkeel.cli.errors import ExitStatus
from evenkeel.cli.main import main
from evenkeel.stack.errors import StackError
from evenkeel.stack.kafka.node import answers as kafka_answers
from evenkeel.stack.kafka.topics import apply_topics
from evenkeel.stack.postgres.server import answers as postgres_answers
from evenkeel.stack.processes.pids import is_alive
from evenkeel.stack.services import SERVICE_NAMES, fleet_address_of, is_healthy, process_names
from evenkeel.stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PROCESSES = process_names(SERVICE_NAMES, 2)


def wait_for(condition: Callable[[], bool], *, timeout_seconds: float = 200.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.25)  # a look may be a command, or a client of Kafka


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    running = Stack(f"test-{uuid.uuid4().hex[:8]}", num_instances=2, keep_data=False)
    with running:
        yield running
    subprocess.run(["rm", "-rf", str(running.folder)], check=True)


def evenkeel(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, from another shell that knows the stack by its name only."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")}
    return subprocess.run(
        [sys.executable, "-m", "evenkeel.cli", "-o", "json", "--stack", stack.name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=clean,
    )


def scheduler_in_charge(stack: Stack) -> str:
    with psycopg.connect(stack.addresses.database_url) as connection:
        row = connection.execute("SELECT address FROM leases WHERE name = 'scheduler'").fetchone()
    return next(
        name for name in ("scheduler", "scheduler-2") if row and fleet_address_of(name, stack.addresses) == row[0]
    )


def test_every_service_is_healthy_when_start_returns(stack: Stack) -> None:
    assert set(stack.service_process_ids) == set(PROCESSES)
    assert all(is_healthy(port) for port in stack.addresses.metrics_ports.values())


def test_another_shell_finds_the_fleet_api_by_the_name_of_the_stack(stack: Stack) -> None:
    listed = evenkeel(stack, "jobs", "list")
    assert (listed.returncode, json.loads(listed.stdout)) == (ExitStatus.OK, []), listed.stderr
    missing = evenkeel(stack, "plans", "explain", "no-such-plan")
    assert missing.returncode == ExitStatus.USAGE
    assert "no-such-plan" in missing.stderr
    assert "Traceback" not in missing.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("plans", "list", "--job", "none"),
        ("incidents", "list", "--job", "none"),
        ("verdicts", "list", "--job", "none"),
        ("verdicts", "explain", "none"),
        ("jobs", "describe", "none"),
        ("jobs", "finish", "none"),
        ("why", "none"),
        ("record", "none", "-o", "none.samples"),
    ],
)
def test_what_is_not_there_is_asked_for_wrongly(
    stack: Stack, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evenkeel", "-o", "json", "--stack", stack.name, *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == ExitStatus.USAGE, said
    assert "none" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", SERVICE_NAMES)
def test_a_killed_service_comes_back_healthy_at_the_same_address(stack: Stack, name: str) -> None:
    restarts = stack.service_restarts[name]
    killed = stack.kill_service(name)
    wait_for(lambda: stack.service_process_ids[name] != killed and is_healthy(stack.addresses.metrics_ports[name]))
    assert stack.service_restarts[name] == restarts + 1
    # A partner that takes over is not ready for a moment.
    wait_for(lambda: evenkeel(stack, "stack", "status", "--name", stack.name).returncode == ExitStatus.OK)
    status = evenkeel(stack, "stack", "status", "--name", stack.name)
    assert {row["part"]: row.get("pid") for row in json.loads(status.stdout)}[name] == stack.service_process_ids[name]


def test_when_the_scheduler_in_charge_is_frozen_the_other_takes_over_and_the_frozen_one_is_started_anew(
    stack: Stack,
) -> None:
    leader = scheduler_in_charge(stack)
    (other,) = {"scheduler", "scheduler-2"} - {leader}
    frozen = stack.service_process_ids[leader]
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait_for(lambda: scheduler_in_charge(stack) == other)
        listed = evenkeel(stack, "jobs", "list")
        assert (listed.returncode, json.loads(listed.stdout)) == (ExitStatus.OK, []), listed.stderr
    finally:
        os.kill(frozen, signal.SIGCONT)
    wait_for(lambda: stack.service_process_ids[leader] != frozen)
    wait_for(lambda: is_healthy(stack.addresses.metrics_ports[leader]))
    assert scheduler_in_charge(stack) == other


@pytest.mark.parametrize("name", ["kafka", "postgres"])
def test_a_killed_server_comes_back_at_the_same_address_with_its_data(stack: Stack, name: str) -> None:
    killed = stack.kill_service(name)
    wait_for(lambda: stack.server_process_ids[name] != killed)
    wait_for(lambda: kafka_answers(stack.addresses.kafka_bootstrap_servers))
    wait_for(lambda: postgres_answers(stack.addresses.database_url))
    assert apply_topics(stack.addresses.kafka_bootstrap_servers) == ()
    wait_for(lambda: all(is_healthy(port) for port in stack.addresses.metrics_ports.values()))
    listed = evenkeel(stack, "jobs", "list")
    assert (listed.returncode, json.loads(listed.stdout)) == (ExitStatus.OK, []), listed.stderr
    status = evenkeel(stack, "stack", "status", "--name", stack.name)
    assert {row["part"]: row.get("restarts") for row in json.loads(status.stdout)}[name] == 1


def test_a_second_owner_of_the_same_name_is_refused(stack: Stack) -> None:
    before = {**stack.service_process_ids, **stack.server_process_ids}
    with pytest.raises(StackError, match="runs already"):
        Stack(stack.name).start()
    assert {**stack.service_process_ids, **stack.server_process_ids} == before
    # One look may come when a service has no processor for two seconds.
    wait_for(lambda: all(is_healthy(port) for port in stack.addresses.metrics_ports.values()))


def test_killing_a_service_that_is_not_there_says_which_ones_are(stack: Stack) -> None:
    with pytest.raises(StackError, match="telemetry, telemetry-2, detector, detector-2, scheduler, scheduler-2"):
        stack.kill_service("coordinator")


def test_nothing_is_left_after_stop(stack: Stack) -> None:
    """The last one: what was killed and started again ends with the others."""
    process_ids = [*stack.service_process_ids.values(), *stack.server_process_ids.values()]
    assert len(process_ids) == len(PROCESSES) + 2
    assert all(is_alive(process_id) for process_id in process_ids)
    stack.stop()
    assert not any(is_alive(process_id) for process_id in process_ids)
    assert not (stack.folder / "state.json").exists()
    assert not (stack.folder / "kafka").exists()
    assert not (stack.folder / "postgres").exists()
