"""How the kernel divides a thread's time: on a core, waiting for one, and blocked, which is the rest of the wall time.

A slow device, or more work, shows on a core; a host that others use, or a quota, shows as waiting for one; a sleep, a
stop or paging as blocked. The wall clock alone has all three in one, and on shared cores ten times their noise.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, Self

# No thread leaves its core and is back in so short a time: a reading as young as that still holds.
_NO_ABSENCE_SECONDS = 5e-6
# A thread that was off its core for less between two readings has waited for none worth a read of a file.
_WORTH_READING_SECONDS = 20e-6
_NEVER = float("-inf")
_FILE_BYTES = 96
_num_forks = 0  # between this process and the one that loaded this


def _forked() -> None:
    global _num_forks
    _num_forks += 1


os.register_at_fork(after_in_child=_forked)


class Thread(Protocol):
    """The kernel's clocks of one thread; read from any thread."""

    def is_current(self) -> bool:
        """Whether it is the thread that calls, in the process that opened this."""

    def cpu_seconds(self) -> float:
        """On a core, so far."""

    def queued_seconds(self) -> float:
        """Ready and waiting for a core, so far."""


class KernelThread:
    """The thread that calls :meth:`open`, as Linux counts its time; ``/proc/thread-self/schedstat`` is kept open.

    The file's own time on a core is as old as the newest tick, so that one comes from the thread's clock.

    Attributes:
        cpu_seconds: Gives the time on a core, so far; no method of ours, as it is read at every border of a span.
    """

    __slots__ = ("_file", "_of", "cpu_seconds")

    def __init__(self, clock: int, file: int) -> None:
        self.cpu_seconds = partial(time.clock_gettime, clock)
        self._file = file
        self._of = os.getpid(), threading.get_ident()

    def __del__(self) -> None:
        os.close(self._file)

    @classmethod
    def open(cls) -> Self | None:
        """Its clocks; None where the kernel does not tell waiting for a core, as outside of Linux."""
        try:
            clock = time.pthread_getcpuclockid(threading.get_ident())
            file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except (AttributeError, OSError):
            return None
        thread = cls(clock, file)
        try:
            _, _, num_turns = os.pread(file, _FILE_BYTES, 0).split()
            thread.cpu_seconds()
        except (OSError, ValueError):
            return None
        return thread if int(num_turns) else None  # a kernel that counts no turns tells zeros of all the rest

    def is_current(self) -> bool:
        """Whether it is the thread that calls, in the process that opened this."""
        return self._of == (os.getpid(), threading.get_ident())

    def queued_seconds(self) -> float:
        """Ready and waiting for a core, so far."""
        return int(os.pread(self._file, _FILE_BYTES, 0).split(None, 2)[1]) * 1e-9


ThreadSeconds = tuple[float, float]
"""What became of a thread's time within some spans of wall time: on a core, and ready and waiting for one."""


class ThreadTimes:
    """Sums the kernel's clocks of the training thread over the spans between :meth:`begin` and :meth:`end`.

    A thread of autograd may call both, while the training thread waits for it: read are the training thread's clocks.
    What is kept of them is the time off the core, which stands still while the thread computes. So spans that meet
    share one reading, and the file is read only where that time has grown.

    Args:
        clock: Monotonic seconds.
        open_thread: Gives the clocks of the calling thread, None where there are none.
    """

    __slots__ = (
        "_began",
        "_clock",
        "_cpu",
        "_filed_off_core",
        "_off_core",
        "_open_thread",
        "_opened_in",
        "_queued",
        "_queued_so_far",
        "_read_at",
        "_thread",
    )

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        open_thread: Callable[[], Thread | None] = KernelThread.open,
    ) -> None:
        self._clock = clock
        self._open_thread = open_thread
        self._thread: Thread | None = None
        self._opened_in = -1
        self._read_at = _NEVER
        self._off_core, self._filed_off_core, self._queued_so_far = 0.0, _NEVER, 0.0
        self._began: tuple[float, float, float] | None = None
        self._cpu, self._queued = 0.0, 0.0

    def begin(self) -> float:
        """A span begins; returns when."""
        if self._opened_in != _num_forks:
            self._reopen()
        thread = self._thread
        if thread is None:
            return self._clock()
        now = self._read(thread)
        self._began = now, self._off_core, self._queued_so_far
        return now

    def end(self) -> float:
        """The span ends; returns when."""
        thread, began = self._thread, self._began
        if thread is None or began is None or self._opened_in != _num_forks:
            return self._clock()  # nobody may read the clocks of another process
        self._began = None
        now = self._read(thread)
        self._cpu += now - began[0] - (self._off_core - began[1])
        self._queued += self._queued_so_far - began[2]
        return now

    def take(self) -> ThreadSeconds | None:
        """The sums since the last take; None where they are not known. By the thread that they are of.

        They are not known either if that was another thread, or a process that this one was forked from: its clocks
        are opened for the next take.
        """
        thread = self._thread
        if thread is None:
            return None
        taken = self._cpu, self._queued
        self._cpu, self._queued = 0.0, 0.0
        if thread.is_current():
            return taken
        self._opened_in = -1
        return None

    def _read(self, thread: Thread) -> float:
        """Bring the time off the core, and the part of it in the queue, up to now; returns when that is.

        The thread's clock is read before the time, and the file after it: a system call is where the kernel takes a
        core away, and a wait that begins between time and file would belong to the span by one clock and not by the
        other.
        """
        now = self._clock()
        if now - self._read_at < _NO_ABSENCE_SECONDS:
            return now
        cpu = thread.cpu_seconds()
        self._read_at = now = self._clock()
        self._off_core = off_core = now - cpu
        if off_core - self._filed_off_core > _WORTH_READING_SECONDS:
            self._filed_off_core, self._queued_so_far = off_core, thread.queued_seconds()
        return now

    def _reopen(self) -> None:
        self._opened_in = _num_forks
        self._began = None
        self._thread = self._open_thread()
        self._read_at = self._filed_off_core = _NEVER
