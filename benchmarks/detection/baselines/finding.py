"""What any detector says about a trace, ours or a baseline."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.detection.traces.traces import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An alarm.

    Attributes:
        iteration: When it was raised.
        ranks: Whom it accuses; empty = it made the job pause and validate, and accused nobody.
        throughput: Severity it gives, 1.0 = healthy.
    """

    iteration: int
    ranks: tuple[int, ...]
    throughput: float = 1.0


Probe = Callable[[int], NDArray[np.float64]]
"""Measures every rank's throughput in an iteration, as a GEMM on every device would; costs the job a pause."""


class Contender(Protocol):
    """A detector that reads a whole trace in order and raises findings."""

    @property
    def name(self) -> str:
        """What the tables call it."""

    def findings(self, trace: Trace) -> list[Finding]:
        """All alarms over the trace."""
