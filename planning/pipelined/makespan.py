"""Seconds of 1F1B and ZB-H1 pipelines whose micro-batches are alike: what programs would take, without writing them.

Step t runs, stage by stage, forward t, the input's part of the backward of micro-batch ``t - (stages - 1 - s)`` and the
weights' part of micro-batch ``t - (stages - 1)``: each stage's own order under ZB-H1, and whatever they wait for is
there. What weights' parts are left at the end wait for nobody. For equal stages with w <= f and w <= b, and at least as
many micro-batches as stages, that is m (f + b + w) + (p - 1) (f + b - w): the closed form of arXiv 2401.10241. 1F1B is
the same with the input's part as all of the backward.
"""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

_Floats = npt.NDArray[np.float64]


@compiled
def pipeline_makespan(parts: _Floats, num_micro_batches: int, border_seconds: _Floats) -> float:
    """Seconds up to the last part of a backward.

    Args:
        parts: [stages, 3] seconds of a micro-batch: forward, backward up to the gradient that is sent on, the rest of
            the backward. Under 1F1B there is no such rest.
        num_micro_batches: 0 take no time.
        border_seconds: [stages - 1] seconds of a transfer from each stage to the next, and back.
    """
    last, end = len(parts) - 1, 0.0
    clocks, gradients = np.zeros(last + 1), np.zeros(last + 2)  # a stage's gradient: when it is there before it
    for step in range(num_micro_batches + last):
        arrival = -math.inf
        for s in range(last + 1):
            clock = clocks[s]
            if step < num_micro_batches:
                clock = max(clock, arrival) + parts[s, 0]
                arrival = clock + border_seconds[s] if s < last else arrival
            if last <= step + s < num_micro_batches + last:
                clock = max(clock, gradients[s + 1]) + parts[s, 1]
                gradients[s] = clock + (border_seconds[s - 1] if s else 0.0)
                if step >= last:
                    clock += parts[s, 2]
            clocks[s] = clock
    for s in range(last + 1):
        end = max(end, clocks[s] + min(s, num_micro_batches) * parts[s, 2])
    return end
