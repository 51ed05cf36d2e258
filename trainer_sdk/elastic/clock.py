"""Where an iteration's time goes: compute segments on the device, and waits between them, each by kind."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeVar

from trainer_sdk.devices.device import ComputeKind, Device
from trainer_sdk.emit.progress import ProgressMark
from trainer_sdk.emit.wall_clock import WallClock

T = TypeVar("T")


class WaitKind(StrEnum):
    """What a rank waits for."""

    TENSOR = "tensor"
    PIPELINE = "pipeline"
    GRADIENT = "gradient"
    VOTE = "vote"


_WAIT_MARKS = {kind: f"wait:{kind}" for kind in WaitKind}


class Clock:
    """Splits the training thread's time. A wait inside a compute segment ends the segment and opens the next one.

    Args:
        device: Measures, and where it is emulated paces, the segments.
        progress: Told of every segment and every wait.

    Attributes:
        began_at_unix_seconds: Start of the iteration in progress.
        began_seconds: The same on ``time.perf_counter``, as the stamps of :mod:`trainer_sdk.groups.channel` are.
    """

    def __init__(self, device: Device, progress: ProgressMark) -> None:
        self._device = device
        self._progress = progress
        self._kind: ComputeKind | None = None
        self._flops = 0.0
        self._waited = dict.fromkeys(WaitKind, 0.0)
        self._wall_clock = WallClock()
        self.began_at_unix_seconds = 0.0
        self.began_seconds = 0.0

    def begin_iteration(self) -> None:
        """An iteration starts now."""
        self.began_at_unix_seconds, self.began_seconds = self._wall_clock.read()

    @contextmanager
    def computing(self, kind: ComputeKind) -> Iterator[None]:
        """A stretch of compute of one kind; not nested."""
        self._progress.enter(kind.value)
        self._kind, self._flops = kind, 0.0
        self._device.begin()
        try:
            yield
        finally:
            # Also when a wait inside was interrupted: the next stretch must not find this one open.
            self._kind = None
        self._device.end(self._flops, kind)

    def add(self, flops: float) -> None:
        """The open stretch did, or is about to do, this many operations."""
        self._flops += flops

    def wait(self, kind: WaitKind, waiting_for: tuple[int, ...], wait: Callable[[], T]) -> T:
        """Run ``wait``, which waits for others, and return its result; its time is waiting, not compute."""
        compute = self._kind
        if compute is not None:
            self._device.end(self._flops, compute)
            self._flops = 0.0
        self._progress.enter(_WAIT_MARKS[kind], waiting_for)
        started = time.perf_counter()
        result = wait()
        self._waited[kind] += time.perf_counter() - started
        if compute is not None:
            self._progress.enter(compute.value)
            self._device.begin()
        return result

    def take_compute(self) -> dict[ComputeKind, float]:
        """Compute seconds by kind since the last take."""
        return self._device.take_seconds()

    def take_waiting(self) -> dict[WaitKind, float]:
        """Waiting seconds by kind since the last take."""
        taken = self._waited
        self._waited = dict.fromkeys(WaitKind, 0.0)
        return taken
