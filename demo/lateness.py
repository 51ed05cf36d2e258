"""Whether this machine kept up with the devices that it stands in for. Pure.

An emulated device sleeps until its work has lasted as long as it should. Where others want this machine's processors,
the work itself takes longer than that, and a healthy device looks slow: what was seen then says nothing about speed.
"""

import math
from statistics import median

from demo.observations import Observations

ON_TIME = 1.05
"""Up to here speeds are found as exactly as the expectations ask for."""
_WORST_TENTH = 0.9


def lateness(seen: Observations) -> float:
    """How many times as long as it should compute took on devices that nobody touched, in the worst tenth of the run.

    1.0 = on time; NaN when no iteration was seen.
    """
    touched = {truth.rank for truth in seen.truths}
    of_iterations = []
    for entry in seen.iterations:
        late = [
            sample.compute_seconds * seen.flops_per_second / sample.flops
            for sample in seen.log.samples_of(entry.iteration)
            if sample.rank not in touched and sample.flops > 0.0
        ]
        if late:
            of_iterations.append(median(late))
    if not of_iterations:
        return math.nan
    return sorted(of_iterations)[int(_WORST_TENTH * len(of_iterations))]
