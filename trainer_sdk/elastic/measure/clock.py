"""Where an iteration's time goes: compute segments on the device, and waits between them, each by kind."""

import time
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from evenkeel.trainer_sdk.devices.device import Computed, ComputeKind, Device
from evenkeel.trainer_sdk.devices.process_usage import ProcessUsage, Usage
from evenkeel.trainer_sdk.devices.wall_clock import WallClock
from evenkeel.trainer_sdk.emit.progress import ProgressMark

T = TypeVar("T")


class WaitKind(StrEnum):
    """What a rank waits for.

    Attributes:
        mark: How the progress mark names it.
    """

    mark: str

    TENSOR = "tensor"
    PIPELINE = "pipeline"
    GRADIENT = "gradient"
    VOTE = "vote"

    def __init__(self, value: str) -> None:
        self.mark = f"wait:{value}"


BETWEEN_OPERATIONS = "between operations"
"""What the progress mark says once a wait is over and nothing is computed yet."""

_NOTHING_WAITED = dict.fromkeys(WaitKind, 0.0)


class Clock:
    """Splits the training thread's time. A wait inside a compute segment ends the segment and opens the next one.

    Runs at every operation of an iteration: one moment serves device, waits and progress mark wherever they meet.

    Args:
        device: Measures, and where it is emulated paces, the segments.
        progress: Told of every segment and every wait.

    Attributes:
        began_at_unix_seconds: Start of the iteration in progress.
        began_seconds: The same on ``time.perf_counter``, as the stamps of :mod:`evenkeel.trainer_sdk.groups.channel`
            are.
    """

    def __init__(self, device: Device, progress: ProgressMark) -> None:
        self._device = device
        self._progress = progress
        self._stretches = {kind: Stretch(self, kind) for kind in ComputeKind}
        self._kind: ComputeKind | None = None
        self._flops = 0.0
        self._usage = ProcessUsage()
        self._waited = _NOTHING_WAITED.copy()
        self._wall_clock = WallClock()
        self.began_at_unix_seconds = 0.0
        self.began_seconds = 0.0

    def begin_iteration(self) -> None:
        """An iteration starts now."""
        self.began_at_unix_seconds, self.began_seconds = self._wall_clock.read()

    def computing(self, kind: ComputeKind) -> "Stretch":
        """A context around a stretch of compute of one kind; not nested."""
        return self._stretches[kind]

    def add(self, flops: float) -> None:
        """The open stretch did, or is about to do, this many operations."""
        self._flops += flops

    def wait(self, kind: WaitKind, waiting_for: tuple[int, ...], wait: Callable[[], T]) -> T:
        """Run ``wait``, which waits for others, and return its result; its time is waiting, not compute."""
        compute, device, progress = self._kind, self._device, self._progress
        if compute is None:
            started = time.perf_counter()
            progress.newest = kind.mark, waiting_for, started, progress.where
            result = wait()
            ended = time.perf_counter()
            self._waited[kind] += ended - started
            # Who hangs after a wait has to be told from those who wait for it.
            progress.newest = BETWEEN_OPERATIONS, (), ended, progress.where
            return result
        started = device.end(self._flops, compute)
        self._flops = 0.0
        progress.newest = kind.mark, waiting_for, started, progress.where
        result = wait()
        resumed = device.begin(compute)
        self._waited[kind] += resumed - started
        progress.newest = compute, (), resumed, progress.where
        return result

    def take_compute(self) -> Computed:
        """What the device measured since the last take."""
        return self._device.take()

    def take_usage(self) -> Usage:
        """What the process used since the last take."""
        return self._usage.take()

    def take_waiting(self) -> dict[WaitKind, float]:
        """Waiting seconds by kind since the last take."""
        taken, self._waited = self._waited, _NOTHING_WAITED.copy()
        return taken


class Stretch:
    """What :meth:`Clock.computing` gives; one object serves all stretches of its kind."""

    __slots__ = ("_clock", "_kind")

    def __init__(self, clock: Clock, kind: ComputeKind) -> None:
        self._clock = clock
        self._kind = kind

    def __enter__(self) -> None:
        clock, kind, progress = self._clock, self._kind, self._clock._progress
        clock._kind, clock._flops = kind, 0.0
        progress.newest = kind, (), clock._device.begin(kind), progress.where

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        clock = self._clock
        # Also when a wait inside was interrupted: the next stretch must not find this one open.
        clock._kind = None
        if error is None:
            clock._device.end(clock._flops, self._kind)
