"""The port between training code and the device it computes on."""

from enum import StrEnum
from typing import Protocol


class ComputeKind(StrEnum):
    """What a compute segment was for. PROBE is not part of any iteration."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    DATA = "data"
    PROBE = "probe"


class Device(Protocol):
    """Measures, and on emulated devices paces, compute segments. Used by the training thread only."""

    def begin(self) -> float:
        """A compute segment starts, or resumes after waiting. Returns when, on ``time.perf_counter``."""

    def end(self, flops: float, kind: ComputeKind) -> float:
        """The segment ends after ``flops`` operations; its seconds are added to ``kind``. Returns when it ended.

        An emulated device sleeps here until the segment has lasted as long as it would on the device it stands for.
        """

    def take_seconds(self) -> dict[ComputeKind, float]:
        """Compute seconds by kind since the last take; kinds without any are absent."""
