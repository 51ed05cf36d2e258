"""Locks between processes, by files. A lock goes with its process, so none is ever left over."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.02


def try_lock(path: Path, *, timeout_seconds: float = 0.0) -> IO[str] | None:
    """Takes the lock and returns the file that holds it until it is closed; None when another process keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.close()
                return None
        time.sleep(POLL_SECONDS)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock in the block; waits for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
