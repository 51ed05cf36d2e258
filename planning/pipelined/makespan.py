"""Seconds of 1F1B and ZB-H1 pipelines whose micro-batches are alike: what programs would take, without writing them.

Step t runs, stage by stage, forward t, the input's part of the backward of micro-batch ``t - (stages - 1 - s)`` and the
weights' part of micro-batch ``t - (stages - 1)``: each stage's own order under ZB-H1, and whatever they wait for is
there. What weights' parts are left at the end wait for nobody. For equal stages with w <= f and w <= b, and at least as
many micro-batches as stages, that is m (f + b + w) + (p - 1) (f + b - w): the closed form of arXiv 2401.10241. 1F1B is
the same with the input's part as all of the backward.

Once the pipeline is full every step is the same: each clock is a maximum of earlier clocks plus constants, which is a
matrix in the (max, +) algebra. So many steps are leapt over by its powers (Baccelli, Cohen, Olsder, Quadrat:
Synchronization and Linearity, 1992), and thousands of micro-batches take as long to ask about as hundreds.
"""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

_FAR = 256
_MOST_STAGES = 64
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
    last = len(parts) - 1
    if not num_micro_batches:
        return 0.0
    clocks, gradients = _clocks(parts, num_micro_batches, border_seconds)
    if num_micro_batches >= last:
        return _drained(parts, border_seconds, clocks, gradients)
    end = 0.0
    for step in range(num_micro_batches, num_micro_batches + last):
        for s in range(max(0, last - step), min(last, num_micro_batches + last - step - 1) + 1):
            clock = max(clocks[s], gradients[s + 1]) + parts[s, 1]
            gradients[s] = clock + (border_seconds[s - 1] if s else 0.0)
            clocks[s] = clock + parts[s, 2] if step >= last else clock
    for s in range(last + 1):
        end = max(end, clocks[s] + min(s, num_micro_batches) * parts[s, 2])
    return end


@compiled
def _clocks(parts: _Floats, num_steps: int, border_seconds: _Floats) -> tuple[_Floats, _Floats]:
    """Of each stage: its clock after so many steps, and when the gradient that it has sent arrives before it."""
    num_stages = len(parts)
    clocks, gradients = np.zeros(num_stages), np.zeros(num_stages + 1)
    if num_steps - num_stages >= _FAR and num_stages <= _MOST_STAGES:
        _leap(parts, border_seconds, num_steps - num_stages, clocks, gradients)
    else:
        for step in range(num_steps):
            _step(parts, border_seconds, max(0, num_stages - 1 - step), clocks, gradients)
    return clocks, gradients


@compiled
def _step(parts: _Floats, border_seconds: _Floats, first: int, clocks: _Floats, gradients: _Floats) -> None:
    """A forward of every stage and a backward of those from ``first`` on; 0 = the pipeline is full."""
    last, arrival = len(parts) - 1, -math.inf
    for s in range(last + 1):
        clock = max(clocks[s], arrival) + parts[s, 0]
        if s < last:
            arrival = clock + border_seconds[s]
        if s >= first:
            clock = max(clock, gradients[s + 1]) + parts[s, 1]
            gradients[s] = clock + (border_seconds[s - 1] if s else 0.0)
            if first == 0:
                clock += parts[s, 2]
        clocks[s] = clock


@compiled
def _drained(parts: _Floats, border_seconds: _Floats, clocks: _Floats, gradients: _Floats) -> float:
    """The end of a pipeline that was full, after its last forward.

    From each clock and each gradient the longest way to the end is the same whatever has run before.
    """
    last = len(parts) - 1
    from_clocks, from_gradients = np.empty(last + 1), np.full(last + 2, -math.inf)
    for s in range(last + 1):
        from_clocks[s] = s * parts[s, 2]
    for step in range(last - 1, -1, -1):
        for s in range(last - step - 1, -1, -1):
            to_gradient = from_gradients[s] + (border_seconds[s - 1] if s else 0.0)
            rest = max(from_clocks[s] + parts[s, 2], to_gradient) + parts[s, 1]
            from_clocks[s], from_gradients[s] = rest, -math.inf
            from_gradients[s + 1] = max(from_gradients[s + 1], rest)
    end = gradients[last + 1] + from_gradients[last + 1]
    for s in range(last + 1):
        end = max(end, clocks[s] + from_clocks[s], gradients[s] + from_gradients[s])
    return float(end)


@compiled
def _leap(parts: _Floats, border_seconds: _Floats, num_steps: int, clocks: _Floats, gradients: _Floats) -> None:
    """Make of an empty pipeline a full one, so many steps after its first full step."""
    last = len(parts) - 1
    for step in range(last + 1):
        _step(parts, border_seconds, last - step, clocks, gradients)
    # ``power[s, t]``: by how much, at least, clock s is later than clock t was before 1, 2, 4 … steps.
    power = np.empty((last + 1, last + 1))
    for t in range(last + 1):
        later, arrivals = np.full(last + 1, -math.inf), np.full(last + 2, -math.inf)
        later[t] = 0.0
        arrivals[t] = (border_seconds[t - 1] if t else 0.0) - parts[t, 2]
        _step(parts, border_seconds, 0, later, arrivals)
        power[:, t] = later
    while num_steps:
        if num_steps & 1:
            before = clocks.copy()
            for s in range(last + 1):
                clocks[s] = np.max(power[s] + before)
        num_steps >>= 1
        half = power.copy()
        for s in range(last + 1):
            for t in range(last + 1):
                power[s, t] = np.max(half[s] + half[:, t])
    for s in range(last + 1):
        gradients[s] = clocks[s] + ((border_seconds[s - 1] if s else 0.0) - parts[s, 2])
