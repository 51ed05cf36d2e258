"""Which phase a training loop is in: it computes, waits for others, or does neither."""

import time
from collections.abc import Callable

from evenkeel.trainer_sdk.devices.device import ComputeKind, Device
from evenkeel.trainer_sdk.emit.progress import ProgressMark

BETWEEN_ITERATIONS = "between iterations"


class Phases:
    """The phase in force; a new one ends the one before. Outside of an iteration nothing is measured.

    Used by the training thread, and by a thread of autograd while the training thread waits for it.

    Args:
        device: Measures compute.
        progress: Told of every phase: a rank that hangs in one of its own is told from those that wait for it.
        clock: Monotonic seconds, for waits.
    """

    __slots__ = (
        "_active",
        "_between",
        "_clock",
        "_computing",
        "_device",
        "_progress",
        "_waited_seconds",
        "_waiting_since",
    )

    def __init__(self, device: Device, progress: ProgressMark, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._progress = progress
        self._clock = clock
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
            self._leave()
            self._progress.enter(kind)
            self._computing = kind
            self._device.begin()

    def wait(self, what: str, waiting_for: tuple[int, ...] = ()) -> None:
        """From here on others are waited for.

        Args:
            what: For example ``gradient``.
            waiting_for: Their ranks, where known.
        """
        if self._active:
            self._leave()
            self._progress.enter(f"wait:{what}", waiting_for)
            self._waiting_since = self._clock()

    def rest(self) -> None:
        """The phase in force is over."""
        if self._active:
            self._leave()
            self._progress.enter(self._between)

    def end_iteration(self) -> tuple[dict[ComputeKind, float], float]:
        """Seconds of compute by kind, and seconds of waiting: wall time of the thread, so 0 where a GPU waits."""
        self._leave()
        self._progress.enter(BETWEEN_ITERATIONS)
        self._active = False
        waited, self._waited_seconds = self._waited_seconds, 0.0
        return self._device.take_seconds(), waited

    def _leave(self) -> None:
        if self._computing is not None:
            self._device.end(0.0, self._computing)
            self._computing = None
        elif self._waiting_since is not None:
            self._waited_seconds += self._clock() - self._waiting_since
            self._waiting_since = None
