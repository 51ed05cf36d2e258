"""ResiHP's detector (arXiv 2605.06374): change points, then predicted healthy time, then validation above 1.25 x.

The micro-batch time is ``alpha * N + beta * sum of squared lengths``, fitted once in warm-up; the iteration time is
the longest path through the schedule with those costs. A change that the prediction explains is benign: its points
leave the series, and the search for changes goes on from before them. Deviations: the pipeline simulator is ours (the
same one that made the trace, which flatters it); validation is the simulator's probe.
"""

from collections import deque
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.detection.baselines.change_points import BayesianChangePoints
from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.baselines.validation import Validation
from benchmarks.detection.traces.traces import Trace
from evenkeel.simulator.job.pipeline_run import run_pipeline

_MOST_POINTS = 16
"""Points of a segment that are told as a change at most: the detector settles after a few."""


@dataclass(frozen=True, slots=True)
class ResiHP:
    """Validates when the iteration took more than ``ratio`` times its prediction."""

    ratio: float = 1.25
    warm_up: int = 20
    suspect_ratio: float = 1.1
    name: str = "ResiHP"

    def findings(self, trace: Trace) -> list[Finding]:
        """All validations: accusing if a device is slow, else a false alarm."""
        walls = trace.times.wall.max(axis=1)
        predicted = self._predicted(trace, walls)
        points = BayesianChangePoints()
        validation = Validation(trace, self.suspect_ratio)
        found: list[Finding] = []
        before: deque[BayesianChangePoints] = deque(maxlen=_MOST_POINTS)
        for iteration, wall in enumerate(walls):
            before.append(deepcopy(points))
            since = points.update(float(wall))
            if since is None:
                continue
            if iteration >= self.warm_up and wall > self.ratio * predicted[iteration]:
                found += validation.findings(iteration)
            else:
                points = before[max(0, len(before) - since)]
                before.clear()
        return found

    def _predicted(self, trace: Trace, walls: NDArray[np.float64]) -> NDArray[np.float64]:
        """Healthy time of each iteration: longest path, scaled to the warm-up iterations."""
        healthy = run_pipeline(
            model=trace.model,
            layout=trace.layout,
            hardware=trace.hardware,
            workload=trace.workload,
            slowdown=np.ones_like(trace.times.wall),
        ).wall.max(axis=1)
        scale = np.median(walls[: self.warm_up] / healthy[: self.warm_up])
        return np.asarray(healthy * scale)
