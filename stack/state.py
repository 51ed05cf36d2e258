"""What a stack writes down about itself, so that another shell can find it: ``.stack/<name>/state.json``.

The file holds the database's password and the fleet token, so only its owner may read it.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter

from evenkeel.stack.addresses import Addresses
from evenkeel.stack.errors import StackError
from evenkeel.stack.paths import stack_folder
from evenkeel.stack.processes.locks import try_lock
from evenkeel.stack.processes.pids import start_mark


class Phase(StrEnum):
    """Where a stack is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One process of a stack.

    Attributes:
        process_id: Its id.
        mark: When it started, see :func:`evenkeel.stack.processes.pids.start_mark`.
        restarts: How often it was started again.
    """

    process_id: int
    mark: str
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """A stack as it was when the file was written.

    Attributes:
        name: Name of the stack.
        phase: Where it is in its life.
        owner_id: Process that owns it.
        addresses: Where its parts are.
        processes: Its processes by name.
        error: Why it failed; empty unless it did.
        doing: What a stack that starts is at.
    """

    name: str
    phase: Phase
    owner_id: int
    addresses: Addresses = field(default_factory=Addresses)
    processes: Mapping[str, ProcessState] = field(default_factory=dict)
    error: str = ""
    doing: str = ""


_STATE = TypeAdapter(StackState)


def process_state(process_id: int, *, restarts: int = 0) -> ProcessState:
    """The state of a process that runs now."""
    return ProcessState(process_id=process_id, mark=start_mark(process_id), restarts=restarts)


def state_path(name: str) -> Path:
    """Where the state of the stack ``name`` is."""
    return stack_folder(name) / "state.json"


def lock_path(name: str) -> Path:
    """The lock that the owner of the stack ``name`` holds for as long as it lives."""
    return stack_folder(name) / "lock"


def write_state(state: StackState) -> None:
    """Writes the state; readers see the old or the new one, never half of one.

    Raises:
        OSError: It cannot be written; the old one stays.
    """
    try:
        content = _STATE.dump_json(state, indent=2)
    except ValueError as error:  # names of files may hold what is no text
        raise OSError(str(error)) from error
    path = state_path(state.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".state-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_state(name: str) -> StackState | None:
    """The state of a stack, :attr:`Phase.DIED` when its owner is gone without a word; None when there is none."""
    try:
        state = _STATE.validate_json(state_path(name).read_bytes())
    except (FileNotFoundError, ValueError):  # not whole: the machine lost its power, and nothing of it runs
        return None
    died = state.phase is not Phase.FAILED and not is_owned(name)
    return replace(state, phase=Phase.DIED) if died else state


def remove_state(name: str) -> None:
    """Forgets the stack."""
    state_path(name).unlink(missing_ok=True)


def is_owned(name: str) -> bool:
    """Whether a living process owns the stack.

    Raises:
        StackError: Its folder cannot be written, so nobody can tell.
    """
    try:
        lock = try_lock(lock_path(name))
    except OSError as error:
        raise StackError(f"the folder of the stack {name!r} cannot be used: {error}") from error
    if lock is None:
        return True
    lock.close()
    return False
