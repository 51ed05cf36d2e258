"""The port between training code and the device it computes on."""

from enum import StrEnum
from typing import NamedTuple, Protocol

from evenkeel.trainer_sdk.devices.thread_times import ThreadSeconds


class ComputeKind(StrEnum):
    """What a compute segment was for. PROBE is not part of any iteration."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    DATA = "data"
    PROBE = "probe"


WORK = frozenset((ComputeKind.FORWARD, ComputeKind.BACKWARD))
"""What the kernel's clocks of the training thread count, and a device's own seconds."""


class Computed(NamedTuple):
    """What a device measured of an iteration.

    Attributes:
        seconds: Compute seconds by kind; kinds without any are absent.
        thread: What became of the training thread's time in forward and backward passes; None where nobody tells, or
            where it says nothing of the device.
        by_device: The seconds are the device's own, not those of the thread that drives it.
    """

    seconds: dict[ComputeKind, float]
    thread: ThreadSeconds | None
    by_device: bool


class Device(Protocol):
    """Measures, and on emulated devices paces, compute segments. Used by the training thread only."""

    def begin(self, kind: ComputeKind) -> float:
        """A segment of this kind starts, or resumes after waiting. Returns when, on ``time.perf_counter``."""

    def end(self, flops: float, kind: ComputeKind) -> float:
        """The segment ends after ``flops`` operations; its seconds are added to ``kind``, its own. Returns when.

        An emulated device sleeps here until the segment has lasted as long as it would on the device it stands for.
        """

    def take(self) -> Computed:
        """What was measured since the last take."""
