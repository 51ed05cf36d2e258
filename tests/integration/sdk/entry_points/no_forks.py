"""Ranks on a machine that has no process to give while there is a file that NO_FORKS names."""

import errno
import os
from pathlib import Path

from launched_ranks import until_told  # noqa: F401 - the entry point

_fork = os.fork


def fork() -> int:
    if Path(os.environ["NO_FORKS"]).exists():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _fork()


os.fork = fork
