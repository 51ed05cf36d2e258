"""Real devices: wall clock and kernel clocks on a CPU, CUDA events on a GPU. Nothing is paced."""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, Self

from evenkeel.trainer_sdk.devices.device import WORK, Computed, ComputeKind
from evenkeel.trainer_sdk.devices.thread_times import KernelThread, Thread, ThreadTimes


class _Event(Protocol):
    """What we use of ``torch.cuda.Event``, which carries no types itself."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Self, /) -> float: ...


class CpuDevice:
    """Measures compute segments by the wall clock, and how the kernel divides them.

    Args:
        clock: Monotonic seconds.
        open_thread: Gives the kernel's clocks of the calling thread, None where there are none.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        open_thread: Callable[[], Thread | None] = KernelThread.open,
    ) -> None:
        self._clock = clock
        self._times = ThreadTimes(clock, open_thread)
        self._began_seconds = clock()
        self._seconds: dict[ComputeKind, float] = {}

    def begin(self, kind: ComputeKind) -> float:
        """A compute segment starts, or resumes after waiting."""
        self._began_seconds = now = self._times.begin() if kind in WORK else self._clock()
        return now

    def end(self, flops: float, kind: ComputeKind) -> float:
        """The segment ends; ``flops`` is not needed here."""
        now = self._times.end() if kind in WORK else self._clock()
        self._seconds[kind] = self._seconds.get(kind, 0.0) + (now - self._began_seconds)
        self._began_seconds = now
        return now

    def take(self) -> Computed:
        """What was measured since the last take."""
        taken, self._seconds = self._seconds, {}
        return Computed(taken, self._times.take(), False)


class CudaDevice:
    """Measures compute segments by CUDA events on the current stream; never synchronises.

    A segment that the GPU has not finished at :meth:`take` counts in the next take.
    """

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - the SDK loads without torch

        self._new_event: Callable[[], _Event] = partial(torch.cuda.Event, enable_timing=True)
        self._began: _Event | None = None
        self._open: list[tuple[ComputeKind, _Event, _Event]] = []
        self._times = ThreadTimes()

    def begin(self, kind: ComputeKind) -> float:
        """A compute segment starts, or resumes after waiting."""
        self._began = self._new_event()
        self._began.record()
        return self._times.begin() if kind in WORK else time.perf_counter()

    def end(self, flops: float, kind: ComputeKind) -> float:
        """The segment ends; ``flops`` is not needed here."""
        ended = self._new_event()
        ended.record()
        if self._began is not None:
            self._open.append((kind, self._began, ended))
        self._began = ended
        return self._times.end() if kind in WORK else time.perf_counter()

    def take(self) -> Computed:
        """What was measured of the segments that the GPU has finished since the last take."""
        seconds: dict[ComputeKind, float] = {}
        still_open = []
        for kind, began, ended in self._open:
            if ended.query():
                seconds[kind] = seconds.get(kind, 0.0) + began.elapsed_time(ended) / 1000.0
            else:
                still_open.append((kind, began, ended))
        self._open = still_open
        return Computed(seconds, self._times.take(), True)
