"""Which phase a training loop is in: it computes, waits for others, or does neither."""

import time
from collections.abc import Callable

from evenkeel.trainer_sdk.devices.device import Computed, ComputeKind, Device
from evenkeel.trainer_sdk.devices.process_usage import ProcessUsage, Usage
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.watch.guard import Guard

BETWEEN_ITERATIONS = "between iterations"


Phased = tuple[float, Computed, float, Usage]
"""When an iteration ended, on the clock of the phases; what the device measured; wall time of the thread in waits, so
0 where a GPU waits; what the process used since the iteration before ended."""


class Phases:
    """The phase in force; a new one ends the one before. Outside of an iteration nothing is measured.

    Used by the training thread, and by a thread of autograd while the training thread waits for it.

    Args:
        device: Measures compute.
        progress: Told of every phase: a rank that hangs in one of its own is told from those that wait for it.
        clock: Monotonic seconds, of waits and marks: ``time.perf_counter``, or what a test puts in its place.

    Attributes:
        guard: Keeps what goes wrong here, and in hooks that call this, out of the loop.
    """

    __slots__ = (
        "_active",
        "_between",
        "_clock",
        "_computing",
        "_device",
        "_progress",
        "_usage",
        "_waited_seconds",
        "_waiting_since",
        "guard",
    )

    def __init__(self, device: Device, progress: ProgressMark, clock: Callable[[], float] = time.perf_counter) -> None:
        self.guard = Guard()
        self._device = device
        self._progress = progress
        self._clock = clock
        self._usage = ProcessUsage()
        self._active = False
        self._between = BETWEEN_ITERATIONS
        self._computing: ComputeKind | None = None
        self._waiting_since: float | None = None
        self._waited_seconds = 0.0

    def begin_iteration(self, iteration: int, *, mark: str = "") -> float:
        """Later phases belong to this iteration; returns when it began.

        Args:
            iteration: Its number.
            mark: What was planned for it, if anything: the operation of a rank that is in no phase.
        """
        self._progress.begin_iteration(iteration, 0)
        self._between = mark or "iteration"
        now = self._clock()
        self._progress.newest = self._between, (), now, self._progress.where
        self._active = True
        return now

    def pause(self, mark: str) -> None:
        """Between iterations: something planned begins, in which this rank may stay for long; empty: it is over."""
        self._progress.enter(mark or BETWEEN_ITERATIONS)

    def compute(self, kind: ComputeKind) -> None:
        """From here on this device computes, and waits for nobody."""
        if self._active:
            try:
                if self._computing is not None or self._waiting_since is not None:
                    self._leave()
                self._progress.newest = kind, (), self._device.begin(kind), self._progress.where
                self._computing = kind
            except Exception as error:
                self.guard.note("a compute phase", error)

    def wait(self, what: str, waiting_for: tuple[int, ...] = ()) -> None:
        """From here on others are waited for.

        Args:
            what: For example ``gradient``.
            waiting_for: Their ranks, where known.
        """
        if self._active:
            try:
                self._waiting_since = now = self._leave()
                self._progress.newest = f"wait:{what}", waiting_for, now, self._progress.where
            except Exception as error:
                self.guard.note("a wait", error)

    def rest(self) -> None:
        """The phase in force is over."""
        if self._active:
            try:
                self._progress.newest = self._between, (), self._leave(), self._progress.where
            except Exception as error:
                self.guard.note("the end of a phase", error)

    def end_iteration(self) -> Phased:
        """What was measured of it."""
        now = self._leave()
        self._progress.newest = BETWEEN_ITERATIONS, (), now, self._progress.where
        self._active = False
        waited, self._waited_seconds = self._waited_seconds, 0.0
        return now, self._device.take(), waited, self._usage.take()

    def _leave(self) -> float:
        """The phase in force, if there is one, is over now; returns when that is."""
        computing = self._computing
        if computing is not None:
            self._computing = None
            return self._device.end(0.0, computing)
        now = self._clock()
        if self._waiting_since is not None:
            self._waited_seconds += now - self._waiting_since
            self._waiting_since = None
        return now
