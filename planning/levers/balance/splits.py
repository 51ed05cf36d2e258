"""Which splits of blocks over stages can be the fastest.

A pipeline of stages with seconds c_s per micro-batch takes about sum(c) + (m - 1) max(c). For a cap on the maximum,
dynamic programming over (stage, border) finds the least sum. The best split of that form lies between that of the least
maximum and that of the least sum. From these two and from one between them a closer form of a pipeline's time
(:mod:`evenkeel.planning.pipelined.pipeline_bound`) says which single blocks had better change their stage.

``seconds[s, first, stop]`` is everywhere: of a micro-batch of blocks first to stop - 1, forward and backward, on the
devices of stage s; infinite where they must not have these. More blocks never take less.
"""

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.planning.pipelined.pipeline_bound import pipeline_bound

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_EXHAUSTIVE_WORK = 2000
_MAX_STEPS = 24
_LOOSER = 1.1
_BETTER = 1.0 - 1e-9


def likely_splits(seconds: Floats, quota: int, forward_part: float, transfer_seconds: float) -> list[tuple[int, ...]]:
    """Borders of the splits that can be the fastest for a quota, the outer ones included: all where there are few.

    With few micro-batches the forms by which they are found are off by some percent; there comparing is cheap.

    Args:
        seconds: As above.
        quota: Micro-batches of the replica.
        forward_part: The part of the seconds that is forward.
        transfer_seconds: Per transfer between stages.
    """
    num_stages, num_blocks = len(seconds), seconds.shape[1] - 1
    if math.comb(num_blocks - 1, num_stages - 1) * num_stages * max(1, quota) <= _EXHAUSTIVE_WORK:
        return [(0, *inner, num_blocks) for inner in combinations(range(1, num_blocks), num_stages - 1)]
    tight, found = least_slowest(seconds), list[tuple[int, ...]]()
    for cap in (tight, _LOOSER * tight, math.inf):
        borders = np.empty(num_stages + 1, np.int64)
        if least_sum(seconds, cap, borders) == math.inf:
            return []
        if quota:
            better = climbed(seconds, borders, quota, forward_part, transfer_seconds)[1]
            found.append(tuple(better.tolist()))
        found.append(tuple(borders.tolist()))
    return list(dict.fromkeys(found))


@compiled
def least_slowest(seconds: Floats) -> float:
    """Seconds of the slowest stage of the split in which these are fewest; infinite where there is no split."""
    num_borders = seconds.shape[1]
    before = np.full(num_borders, math.inf)
    before[0] = 0.0
    for each in seconds:
        after = np.full(num_borders, math.inf)
        for first in range(num_borders):
            for stop in range(first + 1, num_borders):
                slowest = max(before[first], each[first, stop])
                if slowest == math.inf:
                    break
                after[stop] = min(after[stop], slowest)
        before = after
    return float(before[-1])


@compiled
def least_sum(seconds: Floats, cap: float, borders: Integers) -> float:
    """Seconds of all stages of the split of least sum in which none lasts longer than ``cap``; infinite without one.

    Its borders, the outer ones included, are written to ``borders``.
    """
    num_stages, num_blocks = len(seconds), seconds.shape[1] - 1
    rests, best_stops = np.full(num_blocks + 1, math.inf), np.zeros((num_stages, num_blocks + 1), np.int64)
    rests[num_blocks] = 0.0
    for s in range(num_stages - 1, -1, -1):
        totals, last = np.full(num_blocks + 1, math.inf), num_blocks - (num_stages - 1 - s)
        for first in range(s, last if s else 1):
            for stop in range(first + 1, last + 1):
                taken = seconds[s, first, stop]
                if taken > cap:
                    break
                if taken + rests[stop] < totals[first]:
                    totals[first], best_stops[s, first] = taken + rests[stop], stop
        rests = totals
    borders[0] = 0
    for s in range(num_stages):
        borders[s + 1] = best_stops[s, borders[s]]
    return float(rests[0])


@compiled
def climbed(
    seconds: Floats, borders: Integers, num_micro_batches: int, forward_part: float, transfer_seconds: float
) -> tuple[float, Integers]:
    """(Least seconds, borders) where no block that changes its stage makes a split better any more.

    First a block leaves the stage that takes longest, for anywhere; where none is better off so, one of the stages
    after it goes to one of those before it, since seconds after that stage count twice.

    Args:
        seconds: As above.
        borders: [stages + 1] of the split to start from, the outer ones included.
        num_micro_batches: Of the pipeline, at least 1.
        forward_part: The part of the seconds that is forward.
        transfer_seconds: Per transfer between stages.
    """
    borders, best, num_stages = borders.copy(), borders.copy(), len(seconds)
    least, slowest = _bound_of(seconds, borders, num_micro_batches, forward_part, transfer_seconds, math.inf)
    for _ in range(_MAX_STEPS):
        limit, next_slowest, found = least * _BETTER, slowest, False
        for giver in range(slowest, num_stages):
            if found and giver > slowest:
                break
            for taker in range(num_stages if giver == slowest else slowest):
                if taker == giver or borders[giver + 1] - borders[giver] < 2:
                    continue
                _move(borders, giver, taker)
                other, its_slowest = _bound_of(
                    seconds, borders, num_micro_batches, forward_part, transfer_seconds, limit
                )
                if other < limit:
                    limit, next_slowest, found = other, its_slowest, True
                    best[:] = borders
                _move(borders, taker, giver)
        if not found:
            break
        least, slowest = limit, next_slowest
        borders[:] = best
    return least, borders


@compiled
def _bound_of(
    seconds: Floats,
    borders: Integers,
    num_micro_batches: int,
    forward_part: float,
    transfer_seconds: float,
    limit: float,
) -> tuple[float, int]:
    """:func:`pipeline_bound` of a split; infinite where some stage must not have its blocks."""
    parts = np.zeros((len(seconds), 3))
    for s in range(len(seconds)):
        parts[s, 1] = seconds[s, borders[s], borders[s + 1]]
    if parts.max() == math.inf:
        return math.inf, 0
    return pipeline_bound(parts, 0, 0.0, num_micro_batches, forward_part, 1.0 - forward_part, transfer_seconds, limit)


@compiled
def _move(borders: Integers, giver: int, taker: int) -> None:
    """One stage has a block less and another one more; what is between changes its blocks."""
    if taker < giver:
        borders[taker + 1 : giver + 1] += 1
    else:
        borders[giver + 1 : taker + 1] -= 1
