"""How the kernel divides a thread's time: on a core, waiting for one, and blocked, which is the rest of the wall time.

A slow device, or more work, shows on a core; a host that others use, or a quota, shows as waiting for one; a sleep, a
stop or paging as blocked. The wall clock alone has all three in one, and on shared cores ten times their noise.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

# A thread that was off its core for less between two readings has waited for none worth a read of a file.
_WORTH_READING_SECONDS = 20e-6
_FILE_BYTES = 96


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
    """

    __slots__ = ("_clock", "_file", "_of")

    def __init__(self, clock: int, file: int) -> None:
        self._clock = clock
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
            time.clock_gettime(clock)
        except (OSError, ValueError):
            return None
        return thread if int(num_turns) else None  # a kernel that counts no turns tells zeros of all the rest

    def is_current(self) -> bool:
        """Whether it is the thread that calls, in the process that opened this."""
        return self._of == (os.getpid(), threading.get_ident())

    def cpu_seconds(self) -> float:
        """On a core, so far."""
        return time.clock_gettime(self._clock)

    def queued_seconds(self) -> float:
        """Ready and waiting for a core, so far."""
        return int(os.pread(self._file, _FILE_BYTES, 0).split(None, 2)[1]) * 1e-9


class ThreadSeconds(NamedTuple):
    """What became of a thread's time within some spans of wall time."""

    cpu_seconds: float
    queued_seconds: float


class ThreadTimes:
    """Sums the kernel's clocks of the training thread over the spans between :meth:`begin` and :meth:`end`.

    A thread of autograd may call both, while the training thread waits for it: read are the training thread's clocks.
    The thread's clock is read before the time, and the file after it: a system call is where the kernel takes a core
    away, and a wait that begins between time and file would belong to the span by one clock and not by the other.

    Args:
        clock: Monotonic seconds.
        open_thread: Gives the clocks of the calling thread, None where there are none.
    """

    __slots__ = ("_began", "_clock", "_cpu", "_is_open", "_open_thread", "_queued", "_seen", "_seen_queued", "_thread")

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        open_thread: Callable[[], Thread | None] = KernelThread.open,
    ) -> None:
        self._clock = clock
        self._open_thread = open_thread
        self._thread: Thread | None = None
        self._is_open = False
        self._seen, self._seen_queued = 0.0, 0.0
        self._began: tuple[float, float] | None = None
        self._cpu, self._queued = 0.0, 0.0

    def begin(self) -> float:
        """A span begins; returns when."""
        if not self._is_open:
            self._reopen()
        thread = self._thread
        if thread is None:
            return self._clock()
        cpu = thread.cpu_seconds()
        now = self._clock()
        self._began = cpu, self._queued_by(now, cpu, thread)
        return now

    def end(self, *, counts: bool) -> float:
        """The span ends; returns when. ``counts``: it is one of those that are summed."""
        thread, began = self._thread, self._began
        self._began = None
        if not counts or thread is None or began is None:
            return self._clock()
        cpu = thread.cpu_seconds()
        now = self._clock()
        self._cpu += cpu - began[0]
        self._queued += self._queued_by(now, cpu, thread) - began[1]
        return now

    def take(self) -> ThreadSeconds | None:
        """The sums since the last take; None where they are not known. By the thread that they are of.

        They are not known either if that was another thread, or a process that this one was forked from: its clocks
        are opened for the next take.
        """
        thread = self._thread
        if thread is None:
            return None
        taken = ThreadSeconds(self._cpu, self._queued)
        self._cpu, self._queued = 0.0, 0.0
        if thread.is_current():
            return taken
        self._is_open = False
        return None

    def _queued_by(self, now_seconds: float, cpu_seconds: float, thread: Thread) -> float:
        # What has passed on the wall and not on the thread's clock is the time off the core.
        off_core = now_seconds - cpu_seconds
        if off_core - self._seen > _WORTH_READING_SECONDS:
            self._seen, self._seen_queued = off_core, thread.queued_seconds()
        return self._seen_queued

    def _reopen(self) -> None:
        self._is_open = True
        self._began = None
        self._thread = thread = self._open_thread()
        if thread is not None:
            cpu = thread.cpu_seconds()
            self._seen = self._clock() - cpu
            self._seen_queued = thread.queued_seconds()
