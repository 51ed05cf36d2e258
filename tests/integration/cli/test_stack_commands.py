"""``evenkeel stack`` and what it leads to, as a person uses them: real processes, another shell for each command."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from evenkeel.cli.errors import ExitStatus
from evenkeel.stack.paths import stack_folder
from evenkeel.stack.processes.pids import is_alive
from evenkeel.stack.state import Phase, read_state, state_path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


def evenkeel(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")}
    return subprocess.run(
        [sys.executable, "-m", "evenkeel.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**clean, **environment},
    )


@pytest.fixture
def stack_name() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    evenkeel("stack", "down", "--name", name)
    subprocess.run(["rm", "-rf", str(stack_folder(name))], check=True)


def test_settings_for_another_kafka_are_told_before_anything_starts(stack_name: str) -> None:
    up = evenkeel("stack", "up", "--servers", "--name", stack_name, EVENKEEL_KAFKA_SECURITY_PROTOCOL="SSL")
    assert up.returncode != ExitStatus.OK
    assert "EVENKEEL_KAFKA_SECURITY_PROTOCOL is SSL" in up.stderr
    assert not (stack_folder(stack_name) / "kafka").exists()


def test_a_stack_comes_up_is_found_from_other_shells_and_goes_down(stack_name: str, tmp_path: Path) -> None:
    no_programs = str(tmp_path)
    up = evenkeel("-o", "json", "stack", "up", "--servers", "--name", stack_name, PATH=no_programs)
    assert up.returncode == ExitStatus.OK, up.stderr
    said = up.stderr.splitlines()
    assert said[0] == "starting Kafka and PostgreSQL"
    assert "making the history's tables and the topics" in said
    settings = json.loads(up.stdout)["environment"]
    assert set(settings) == {"EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", "EVENKEEL_DATABASE_URL"}

    again = evenkeel("-o", "json", "stack", "up", "--servers", "--name", stack_name)
    assert again.returncode == ExitStatus.OK, again.stderr
    assert json.loads(again.stdout) == json.loads(up.stdout)

    status = evenkeel("-o", "json", "stack", "status", "--name", stack_name)
    assert status.returncode == ExitStatus.OK, status.stderr
    parts = {row["part"]: row for row in json.loads(status.stdout)}
    assert set(parts) == {"owner", "kafka", "postgres"}
    process_ids = [row["pid"] for row in parts.values()]
    assert all(is_alive(process_id) for process_id in process_ids)

    state_path(stack_name).unlink()  # as if a full disk had kept it from being written
    deadline = time.monotonic() + 60.0
    while read_state(stack_name) is None:
        assert time.monotonic() < deadline, "the owner does not tell how the stack stands"
        time.sleep(0.1)

    assert evenkeel("--stack", stack_name, "topics", "check").returncode == ExitStatus.OK
    assert evenkeel("--stack", stack_name, "db", "upgrade").returncode == ExitStatus.OK
    with psycopg.connect(settings["EVENKEEL_DATABASE_URL"]) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)

    assert evenkeel("stack", "down", "--name", stack_name).returncode == ExitStatus.OK
    assert not any(is_alive(process_id) for process_id in process_ids)
    assert read_state(stack_name) is None
    assert evenkeel("stack", "status", "--name", stack_name).returncode == ExitStatus.UNHEALTHY


def test_a_stack_whose_owner_was_killed_is_reported_dead_and_its_next_start_or_down_leaves_nothing_of_it(
    stack_name: str,
) -> None:
    assert evenkeel("stack", "up", "--servers", "--name", stack_name).returncode == ExitStatus.OK
    state = read_state(stack_name)
    assert state is not None
    (watchdog_id,) = [
        each for each in children_of(state.owner_id) if b"evenkeel.stack.processes._watch" in command_of(each)
    ]
    for process_id in (watchdog_id, state.owner_id):
        os.kill(process_id, signal.SIGKILL)
    assert evenkeel("stack", "status", "--name", stack_name).returncode == ExitStatus.UNHEALTHY
    dead = read_state(stack_name)
    assert dead is not None
    assert dead.phase is Phase.DIED
    assert all(is_alive(process.process_id) for process in state.processes.values()), "nobody was there to end them"

    again = evenkeel("stack", "up", "--servers", "--name", stack_name)
    assert again.returncode == ExitStatus.OK, again.stderr
    assert not any(is_alive(process.process_id) for process in state.processes.values())
    assert evenkeel("--stack", stack_name, "topics", "check").returncode == ExitStatus.OK

    state = read_state(stack_name)
    assert state is not None
    os.kill(state.owner_id, signal.SIGKILL)
    # "down" ends what the watchdog has not ended yet, so nothing needs to be waited for here.
    assert evenkeel("stack", "down", "--name", stack_name).returncode == ExitStatus.OK
    assert not any(is_alive(process.process_id) for process in state.processes.values())


def children_of(parent_id: int) -> list[int]:
    """Processes that it started."""
    return [int(each) for each in Path(f"/proc/{parent_id}/task/{parent_id}/children").read_text().split()]


def command_of(process_id: int) -> bytes:
    return Path(f"/proc/{process_id}/cmdline").read_bytes()
