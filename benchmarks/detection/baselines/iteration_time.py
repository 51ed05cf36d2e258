"""What an iteration of a job should take: the longest path through the stages' programs, priced online.

Each stage's program is played with the predicted seconds of its micro-batches
(:mod:`evenkeel.layouts.programs.execution`; as in ResiHP, arXiv 2605.06374, but with prices that are refitted as the
job runs). What lies beside the compute (transfers, tensor and gradient exchange, optimizer) is learned as a factor and
a constant on top, with an interval kept calibrated. How fast the job was of late, relative to its prices, is followed
as well: what slows everybody is not workload.
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.detection.baselines.interval import Interval
from evenkeel.layouts.programs.execution import times
from evenkeel.layouts.programs.instructions import BACKWARD_PART, Instruction, Op, Program
from evenkeel.services.detector.domain.expectation.forgetting_least_squares import ForgettingLeastSquares

Floats = npt.NDArray[np.float64]

_FEATURES = ("path", "constant")
_RECENT = 5


class IterationTime:
    """Predicts the seconds of the next iteration, and of each micro-batch in it, before it ran.

    Args:
        programs: For each replica, the program of each stage.
    """

    def __init__(self, programs: Sequence[Sequence[Program]]) -> None:
        self._programs = programs
        self._beside = ForgettingLeastSquares(forgetting=0.99, ridge=1e-3, primary="path")
        self._interval = Interval()
        self._pace: deque[float] = deque(maxlen=_RECENT)

    @property
    def pace(self) -> float:
        """Compute seconds of late over what the prices say; a median, so that one pause does not move it."""
        return float(np.median(np.array(self._pace))) if self._pace else 1.0

    def longest_path(self, seconds: Sequence[Sequence[dict[int, tuple[float, float]]]]) -> float:
        """Seconds of the longest path.

        Args:
            seconds: By replica and stage, forward and backward seconds of each micro-batch by its index.
        """
        return max(self._replica(programs, one) for programs, one in zip(self._programs, seconds, strict=True))

    @staticmethod
    def _replica(programs: Sequence[Program], seconds: Sequence[dict[int, tuple[float, float]]]) -> float:
        def seconds_of(stage: int, instruction: Instruction) -> float:
            forward, backward = seconds[stage][instruction.micro_batch]
            return forward if instruction.op is Op.FORWARD else backward * BACKWARD_PART[instruction.op]

        return max(stage.end_seconds for stage in times(programs, seconds_of))

    def predict(self, path_seconds: float) -> tuple[float, float, float] | None:
        """Expected seconds of an iteration with this longest path, and its 95 % interval; None before one was seen."""
        if self._beside.mass == 0:
            return None
        expected = self._beside.predict_one({"path": path_seconds, "constant": 1.0})
        reach = self._interval.reach * abs(expected)
        return expected, expected - reach, expected + reach

    def learn(self, path_seconds: float, wall_seconds: float, compute_ratio: float) -> None:
        """Learns an iteration.

        Args:
            path_seconds: Its longest path, at the prices and the pace that were predicted.
            wall_seconds: What it took.
            compute_ratio: Median over ranks of compute seconds over their price.
        """
        if not (math.isfinite(wall_seconds) and wall_seconds > 0 and path_seconds > 0):
            return
        expected = self.predict(path_seconds)
        if expected is not None and expected[0] > 0:
            self._interval.score(abs(wall_seconds / expected[0] - 1))
        # A pause says nothing of the job's usual time, but an interval that never sees one would be too narrow.
        unit = path_seconds if expected is None else max(expected[0], 0.1 * path_seconds)
        self._beside.learn_rows(_FEATURES, np.array([[path_seconds, 1.0]]) / unit, np.array([wall_seconds / unit]))
        self._pace.append(compute_ratio)
