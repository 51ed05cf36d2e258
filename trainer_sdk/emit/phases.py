"""Which phase a training loop is in: it computes, waits for others, or does neither."""

import time
from collections.abc import Callable
from typing import NamedTuple

from evenkeel.trainer_sdk.devices.device import Computed, ComputeKind, Device
from evenkeel.trainer_sdk.devices.process_usage import ProcessUsage, Usage
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.guard import Guard

BETWEEN_ITERATIONS = "between iterations"


class Phased(NamedTuple):
    """An iteration as its phases were.

    Attributes:
        computed: What the device measured.
        waited_seconds: Wall time of the thread in waits, so 0 where a GPU waits.
        usage: Of the process, since the iteration before ended.
    """

    computed: Computed
    waited_seconds: float
    usage: Usage


class Phases:
    """The phase in force; a new one ends the one before. Outside of an iteration nothing is measured.

    Used by the training thread, and by a thread of autograd while the training thread waits for it.

    Args:
        device: Measures compute.
        progress: Told of every phase: a rank that hangs in one of its own is told from those that wait for it.
        clock: Monotonic seconds, for waits.

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

    def begin_iteration(self, iteration: int, *, mark: str = "") -> None:
        """Later phases belong to this iteration.

        Args:
            iteration: Its number.
            mark: What was planned for it, if anything: the operation of a rank that is in no phase.
        """
        self._progress.begin_iteration(iteration, 0)
        self._between = mark or "iteration"
        self._progress.enter(self._between)
        self._active = True

    def pause(self, mark: str) -> None:
        """Between iterations: something planned begins, in which this rank may stay for long; empty: it is over."""
        self._progress.enter(mark or BETWEEN_ITERATIONS)

    def compute(self, kind: ComputeKind) -> None:
        """From here on this device computes, and waits for nobody."""
        if self._active:
            try:
                self._leave()
                self._progress.enter(kind)
                self._device.begin()
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
                self._leave()
                self._progress.enter(f"wait:{what}", waiting_for)
                self._waiting_since = self._clock()
            except Exception as error:
                self.guard.note("a wait", error)

    def rest(self) -> None:
        """The phase in force is over."""
        if self._active:
            try:
                self._leave()
                self._progress.enter(self._between)
            except Exception as error:
                self.guard.note("the end of a phase", error)

    def end_iteration(self) -> Phased:
        """What was measured of it."""
        self._leave()
        self._progress.enter(BETWEEN_ITERATIONS)
        self._active = False
        waited, self._waited_seconds = self._waited_seconds, 0.0
        return Phased(self._device.take(), waited, self._usage.take())

    def _leave(self) -> None:
        if self._computing is not None:
            computing, self._computing = self._computing, None
            self._device.end(0.0, computing)
        elif self._waiting_since is not None:
            self._waited_seconds += self._clock() - self._waiting_since
            self._waiting_since = None
