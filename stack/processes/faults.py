"""Faults for servers that are to be survived: a process and all below it, frozen."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def frozen(process_id: int) -> Iterator[None]:
    """While inside, the process and everything that it started stands still; its connections stay open. Linux only."""
    stopped = _tree(process_id)
    for each in stopped:
        _send(each, signal.SIGSTOP)
    try:
        yield
    finally:
        # Children first: a parent that finds them stopped may take them for ill.
        for each in reversed(stopped):
            _send(each, signal.SIGCONT)


def _tree(process_id: int) -> list[int]:
    """The process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [process_id]
    for each in found:
        found.extend(children.get(each, ()))
    return found


def _send(process_id: int, signal_number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process_id, signal_number)
