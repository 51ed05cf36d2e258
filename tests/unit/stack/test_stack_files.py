"""Names, ports, locks and state: what the stack does with files and without servers."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from evenkeel.stack import paths
from evenkeel.stack.addresses import Addresses
from evenkeel.stack.errors import StackError, log_tail
from evenkeel.stack.paths import stack_folder
from evenkeel.stack.processes.locks import try_lock
from evenkeel.stack.processes.pids import is_alive, start_mark
from evenkeel.stack.processes.ports import free_ports, is_listening
from evenkeel.stack.processes.process import ManagedProcess
from evenkeel.stack.processes.watchdog import Watchdog
from evenkeel.stack.services import SERVICE_NAMES, process_names, service_process
from evenkeel.stack.state import (
    Phase,
    StackState,
    lock_path,
    process_state,
    read_state,
    remove_state,
    state_path,
    write_state,
)

PROCESSES = process_names(SERVICE_NAMES, 2)
ADDRESSES = Addresses(
    kafka_bootstrap_servers="127.0.0.1:9092",
    database_url="postgresql://u:p@127.0.0.1:5432/d",
    fleet_address="127.0.0.1:7000,127.0.0.1:7001",
    fleet_token="token-token-token",
    metrics_ports={name: number for number, name in enumerate(PROCESSES)},
)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "checkout_root", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["", "..", "a/b", "UPPER", "-x", "x" * 42])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(StackError, match="stack name"):
        stack_folder(name)


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not any(is_listening(port) for port in ports)


def test_a_lock_is_had_by_one_and_goes_with_its_file(tmp_path: Path) -> None:
    first = try_lock(tmp_path / "lock")
    assert first is not None
    assert try_lock(tmp_path / "lock") is None
    first.close()
    second = try_lock(tmp_path / "lock")
    assert second is not None
    second.close()


def test_state_is_read_back_as_it_was_written_and_only_the_owner_may_read_it(checkout: Path) -> None:
    lock = try_lock(lock_path("dev"))
    assert lock is not None
    state = StackState(
        name="dev",
        phase=Phase.RUNNING,
        owner_id=os.getpid(),
        addresses=ADDRESSES,
        processes={"kafka": process_state(os.getpid(), restarts=2)},
    )
    write_state(state)
    assert read_state("dev") == state
    assert stat.S_IMODE(state_path("dev").stat().st_mode) == 0o600
    assert json.loads(state_path("dev").read_text())["addresses"]["fleet_address"] == ADDRESSES.fleet_address
    lock.close()
    assert read_state("dev") == replace(state, phase=Phase.DIED)
    remove_state("dev")
    assert read_state("dev") is None


@pytest.mark.parametrize("text", ["", '{"name": "dev", "pha', "\0" * 4096, "{}"])
def test_a_state_that_lost_its_end_with_the_machines_power_is_none(checkout: Path, text: str) -> None:
    write_state(StackState(name="dev", phase=Phase.FAILED, owner_id=1))
    state_path("dev").write_text(text)
    assert read_state("dev") is None


def test_a_failed_stack_keeps_its_reason(checkout: Path) -> None:
    write_state(StackState(name="dev", phase=Phase.FAILED, owner_id=1, error="no Java"))
    state = read_state("dev")
    assert state is not None
    assert (state.phase, state.error) == (Phase.FAILED, "no Java")


def test_the_mark_of_a_process_stays_and_a_dead_one_has_none() -> None:
    assert start_mark(os.getpid()) == start_mark(os.getpid()) != ""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert not is_alive(child)
    assert start_mark(child) == ""


def test_a_child_that_was_not_reaped_is_not_alive() -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.close(write_end)
    # End of file comes when the child has closed its copy of the pipe, a moment before it is a zombie.
    assert os.read(read_end, 1) == b""
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child)
    os.waitpid(child, 0)
    os.close(read_end)


def test_each_process_has_a_name_and_ports_of_its_own_and_only_schedulers_the_fleet_token() -> None:
    assert PROCESSES == ("telemetry", "telemetry-2", "detector", "detector-2", "scheduler", "scheduler-2")
    for name in PROCESSES:
        settings = service_process(name, ADDRESSES).environment
        assert settings["EVENKEEL_INSTANCE_ID"] == ("2" if name.endswith("-2") else "1")
        assert settings["EVENKEEL_KAFKA_BOOTSTRAP_SERVERS"] == "127.0.0.1:9092"
        assert settings["EVENKEEL_METRICS_PORT"] == str(ADDRESSES.metrics_ports[name])
        assert ("EVENKEEL_FLEET_TOKEN" in settings) == name.startswith("scheduler")
    places = [service_process(name, ADDRESSES).environment["EVENKEEL_FLEET_ADDRESS"] for name in PROCESSES[-2:]]
    assert places == ADDRESSES.fleet_address.split(",")


def test_settings_without_a_value_are_left_out() -> None:
    assert Addresses(database_url="postgresql://x").environment() == {"EVENKEEL_DATABASE_URL": "postgresql://x"}


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(f"line {number}" for number in range(100)))
    tail = log_tail(tmp_path / "log", num_lines=2)
    assert "line 99" in tail
    assert "line 97" not in tail
    assert "(empty)" in log_tail(tmp_path / "none")


def test_a_process_that_ends_at_once_is_told_with_the_lines_of_this_start(tmp_path: Path) -> None:
    log, command = tmp_path / "log", ["sh", "-c", "echo port 7 is taken; exit 3"]
    log.write_text("the start before: the disk is full\n")
    process = ManagedProcess(name="kafka", command=command, log_path=log, watchdog=Watchdog())
    process.start()
    with pytest.raises(StackError, match="kafka ended with status 3") as raised:
        process.wait_until(lambda: False, timeout_seconds=60)
    assert "port 7 is taken" in str(raised.value)
    assert "disk" not in str(raised.value)
