"""A disk that takes nothing any more: what runs is kept running, and it ends when it is told to."""

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evenkeel.stack import stack as module
from evenkeel.stack.errors import StackError
from evenkeel.stack.processes.keeper import Keeper
from evenkeel.stack.processes.pids import is_alive
from evenkeel.stack.processes.process import ManagedProcess
from evenkeel.stack.processes.watchdog import Watchdog
from evenkeel.stack.stack import Stack
from evenkeel.stack.state import Phase, StackState, read_state, state_path, write_state

pytestmark = pytest.mark.integration


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200.0
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def is_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_service_that_dies_then_is_started_again_each_time_and_the_stack_ends_with_all_its_processes(
    on_running_servers: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = on_running_servers.start()
    with monkeypatch.context() as disk:
        disk.setattr(module, "write_state", is_full)
        for _ in range(2):
            killed = stack.kill_service("telemetry")
            wait_for(lambda killed=killed: stack.service_process_ids["telemetry"] != killed)  # type: ignore[misc]
        process_id = stack.service_process_ids["telemetry"]
        stack.stop()
    assert not is_alive(process_id)
    assert read_state(stack.name) is None


def test_a_stack_that_nobody_could_find_does_not_start(
    on_running_servers: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "write_state", is_full)
    with pytest.raises(StackError, match=r"cannot be written to .*No space left"):
        on_running_servers.start()


def test_a_state_that_cannot_be_written_leaves_the_old_one_and_nothing_else(
    on_running_servers: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = StackState(name=on_running_servers.name, phase=Phase.FAILED, owner_id=1, error="the old one")
    write_state(old)
    new = StackState(name=old.name, phase=Phase.RUNNING, owner_id=2)
    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", is_full)
        with pytest.raises(OSError, match="No space left"):
            write_state(new)
    assert read_state(old.name) == old
    assert [path.name for path in state_path(old.name).parent.iterdir() if path.name.startswith(".state")] == []


def test_a_process_that_cannot_be_started_again_is_tried_until_it_can(tmp_path: Path) -> None:
    logs, watchdog = tmp_path / "logs", Watchdog()
    process = ManagedProcess(name="kept", command=["sleep", "600"], log_path=logs / "kept.log", watchdog=watchdog)
    process.start()
    keeper = Keeper(process)
    keeper.start()
    try:
        logs.rename(tmp_path / "away")
        logs.touch()  # in its place: no log can be opened
        assert process.process_id is not None
        os.kill(process.process_id, signal.SIGKILL)
        wait_for(lambda: keeper.num_restarts >= 2)
        assert not process.is_running
        logs.unlink()
        wait_for(lambda: process.is_running)
    finally:
        keeper.stop(grace_seconds=0.0)
    assert not process.is_running
