"""Processes that one process forks, reaps and ends, none of which outlives it.

For a process of one thread, which has imported everything heavy and started no CUDA: a fork is safe then and takes
milliseconds.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

END_GRACE_SECONDS = 3.0
EXIT_FAILED = 1
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Child:
    """A process: whose it is, and the how manieth."""

    rank: int
    incarnation: int


class Children:
    """All of them. One thread.

    Args:
        let_go: Called in a child with what it is, before it does anything: closes what is not its own.
        failed: Called in a child with what it is and an error that ends it.
    """

    def __init__(self, let_go: Callable[[Child], None], failed: Callable[[Child, BaseException], None]) -> None:
        self._let_go = let_go
        self._failed = failed
        self._by_pid: dict[int, Child] = {}
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def listen(self) -> None:
        """From here on :attr:`wake` is readable when there may be something to :meth:`reap`. Main thread."""
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    @property
    def wake(self) -> socket.socket:
        """Readable after a signal, of whatever kind."""
        return self._wake_reader

    def fork(self, child: Child, body: Callable[[], int]) -> int:
        """A process that runs a function, whose result is its exit status: its id.

        Raises:
            OSError: There is no memory or no process to be had.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(parent, child, body)
        self._by_pid[pid] = child
        return pid

    def signal(self, child: Child, number: int) -> None:
        """Send a signal to a process, if it is still there."""
        # Only we reap, so a pid in the table is certainly still that process.
        for pid in [pid for pid, each in self._by_pid.items() if each == child]:
            os.kill(pid, number)

    def reap(self) -> Iterator[tuple[Child, int, int]]:
        """Those that have ended: what each was, its process id, and its exit status or minus its signal."""
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        while self._by_pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield self._by_pid.pop(pid), pid, os.waitstatus_to_exitcode(status)

    def end_all(self, ended: Callable[[Child, int, int], None]) -> None:
        """Ask every child to end, then make it; a stopped one does not hear the question."""
        for pid in self._by_pid:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_GRACE_SECONDS
        while self._by_pid and (remaining := deadline - time.monotonic()) > 0:
            for found in self.reap():
                ended(*found)
            if self._by_pid:
                select.select([self._wake_reader], [], [], remaining)
        self.kill_all()

    def kill_all(self) -> None:
        """No child is left when this returns."""
        for pid in self._by_pid:
            os.kill(pid, signal.SIGKILL)
        while self._by_pid:
            pid, _ = os.waitpid(-1, 0)
            self._by_pid.pop(pid, None)

    def _become(self, parent: int, child: Child, body: Callable[[], int]) -> NoReturn:
        status = EXIT_FAILED
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            if self._libc is not None:
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            self._wake_reader.close()
            self._wake_writer.close()
            self._let_go(child)
            if os.getppid() == parent:  # else the parent died before the kernel knew our wish
                status = body()
        except BaseException as error:
            traceback.print_exc()
            self._failed(child, error)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
