"""A stack that outlives the shell that started it: ``evenkeel stack up`` and ``down``."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from evenkeel.stack.errors import StackError, log_tail
from evenkeel.stack.paths import stack_folder
from evenkeel.stack.processes.pids import end_processes, is_alive, start_mark
from evenkeel.stack.state import Phase, StackState, is_owned, read_state, remove_state, state_path

START_TIMEOUT_SECONDS = 600.0
STOP_TIMEOUT_SECONDS = 60.0
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.05


def running_stack(name: str, *, with_services: bool) -> StackState | None:
    """The stack, if somebody has it running; one that starts or stops just now is waited for. None: it does not run.

    Raises:
        StackError: It runs without the services that are wanted, or is not ready in time.
    """
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while is_owned(name):
        state = read_state(name)
        if state is not None and state.phase is Phase.RUNNING:
            if with_services and not state.addresses.fleet_address:
                raise StackError(
                    f"the stack {name!r} runs already, without the services; give this one another --name, or stop "
                    f"that one first: evenkeel stack down --name {name}"
                )
            return state
        if time.monotonic() > deadline:
            raise StackError(f"the stack {name!r} was not ready in {START_TIMEOUT_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    return None


def start_in_background(name: str, *, num_instances: int, say: Callable[[str], None] = lambda _: None) -> StackState:
    """Starts the stack in a process of its own and returns when it runs.

    Args:
        name: Name of the stack.
        num_instances: Processes of each service; 0 = only Kafka and PostgreSQL.
        say: Told what it is at, each time that it is at something else.

    Raises:
        StackError: It did not start, or runs already; the message says why.
    """
    if is_owned(name):
        raise StackError(f"the stack {name!r} runs already; stop it with: evenkeel stack down --name {name}")
    folder = stack_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    dead = read_state(name)
    if dead is not None:
        _end_what_is_left(dead)
    state_path(name).unlink(missing_ok=True)
    log_path = folder / "owner.log"
    command = [sys.executable, "-m", "evenkeel.stack", "--name", name, "--instances", str(num_instances)]
    with log_path.open("wb") as log:
        owner = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        return _await_running(name, owner, say)
    except BaseException as error:
        # Also Ctrl-C: a stack that nobody waited for is not wanted.
        if owner.poll() is None:
            owner.send_signal(signal.SIGTERM)
            owner.wait(STOP_TIMEOUT_SECONDS)
        if isinstance(error, StackError) and not str(error):
            raise StackError(f"the stack {name!r} did not start; {log_tail(log_path)}") from None
        raise


def stop_in_background(name: str) -> bool:
    """Stops the stack, whoever started it, and returns when nothing of it is left.

    Returns:
        Whether there was anything to stop.

    Raises:
        StackError: It did not stop in time.
    """
    state = read_state(name)
    if state is None:
        return False
    if is_owned(name):
        os.kill(state.owner_id, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        # The owner gives the lock back a moment before it ends.
        while is_owned(name) or is_alive(state.owner_id):
            if time.monotonic() > deadline:
                raise StackError(
                    f"the stack {name!r} did not stop in {STOP_TIMEOUT_SECONDS:.0f} s; its owner is {state.owner_id}"
                )
            time.sleep(POLL_SECONDS)
    _end_what_is_left(state)
    remove_state(name)
    return state.phase is not Phase.FAILED


def _end_what_is_left(state: StackState) -> None:
    """Ends what still runs of a stack without owner: its watchdog was killed too, or has not come to it yet."""
    left = [each for each in state.processes.values() if each.mark and start_mark(each.process_id) == each.mark]
    end_processes([(each.process_id, signal.SIGTERM) for each in left], grace_seconds=GRACE_SECONDS)


def _await_running(name: str, owner: subprocess.Popen[bytes], say: Callable[[str], None]) -> StackState:
    said = ""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        ended = owner.poll() is not None
        state = read_state(name)
        if state is not None and state.phase is Phase.FAILED:
            raise StackError(state.error)
        if ended:
            raise StackError
        if state is not None and state.doing not in ("", said):
            said = state.doing
            say(said)
        if state is not None and state.phase is Phase.RUNNING and state.owner_id == owner.pid:
            # Python would warn of a child that we leave running on purpose.
            owner.returncode = 0
            return state
        time.sleep(POLL_SECONDS)
    raise StackError(f"the stack {name!r} was not ready in {START_TIMEOUT_SECONDS:.0f} s")
