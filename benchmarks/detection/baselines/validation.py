"""The validation that Greyhound and ResiHP end in: the job pauses, every device computes, the slow are named."""

import numpy as np

from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.traces.traces import Trace


class Validation:
    """Validates a trace's devices on demand; remembers whom it accused.

    The probe is the simulator's truth without noise, which flatters whoever uses it.

    Args:
        trace: The run.
        suspect_ratio: A device slower than this times the median is accused.
    """

    def __init__(self, trace: Trace, suspect_ratio: float) -> None:
        self._trace = trace
        self._suspect_ratio = suspect_ratio
        self._accused: set[int] = set()

    def findings(self, iteration: int) -> list[Finding]:
        """What validating after ``iteration`` says: fresh accusations, a false alarm, or nothing new."""
        truth = self._trace.true_throughput(iteration)
        slow = np.nonzero(np.median(truth) / truth > self._suspect_ratio)[0].tolist()
        fresh = [column for column in slow if column not in self._accused]
        self._accused.update(fresh)
        if slow and not fresh:
            return []
        return [
            Finding(
                iteration=iteration,
                ranks=tuple(self._trace.times.ranks[column] for column in fresh),
                throughput=float(truth[fresh].min()) if fresh else 1.0,
            )
        ]
