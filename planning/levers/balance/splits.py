"""Which splits of blocks over stages can be the fastest.

A pipeline of stages with seconds c_s per micro-batch takes about sum(c) + (m - 1) max(c). For a cap on the maximum,
dynamic programming over (stage, border) finds the least sum; lowering the cap from one such split to the next finds
all that no other beats in both, so the best of that form is exact for any m. A closer form of a 1F1B pipeline
(:mod:`evenkeel.planning.pipelined.pipeline_bound`) then says which single blocks had better change their stage.

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
_NUM_COMPARED = 3
_MOST_FOUND = 32
_MAX_STEPS = 24
_SLACK = 0.3
_EPSILON = 1e-9
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
    found, values = split_candidates(seconds, quota)
    order = sorted(zip(values.tolist(), map(tuple, found.tolist()), strict=True))
    best = [borders for _, borders in order[:_NUM_COMPARED]]
    if best and quota:
        better = climbed(seconds, np.array(best[0]), quota, forward_part, transfer_seconds)[1]
        best = list(dict.fromkeys((tuple(better.tolist()), *best)))
    return best


@compiled
def parts_of(seconds: Floats, borders: Integers) -> Floats:
    """[stages] seconds of the stages of a split: [stages + 1] borders, the outer ones included."""
    parts = np.empty(len(seconds))
    for s in range(len(seconds)):
        parts[s] = seconds[s, borders[s], borders[s + 1]]
    return parts


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
def split_candidates(seconds: Floats, num_micro_batches: int) -> tuple[Integers, Floats]:
    """Splits that no other beats in both sum and maximum: [splits, stages + 1] borders, and sum + (m - 1) max of each.

    They are found one after the other by lowering the cap on the maximum: below that of the split before, and to what a
    split as good as the best one has left for its slowest stage, as its sum is no less than that of the split before.

    Args:
        seconds: As above.
        num_micro_batches: One more than the weight of the slowest stage.
    """
    num_stages, weight, count = len(seconds), max(0, num_micro_batches - 1), 0
    slack = (1.0 + _EPSILON) * (1.0 + _SLACK / (weight + 6))  # the fewer micro-batches, the less exact the formula
    found, values = np.empty((_MOST_FOUND, num_stages + 1), np.int64), np.empty(_MOST_FOUND)
    # The split with the least maximum is a good one to start from.
    tight = least_slowest(seconds)
    if tight == math.inf:
        return found[:0], values[:0]
    best, cap = _least_sum(seconds, tight, found[0]) + weight * tight, math.inf
    while count < _MOST_FOUND:
        total = _least_sum(seconds, cap, found[count])
        if total == math.inf:
            break
        slowest = parts_of(seconds, found[count]).max()
        values[count] = total + weight * slowest
        best = min(best, values[count])
        count += 1
        if not weight:
            break
        cap = min(slowest * (1.0 - _EPSILON), (best * slack - total) / weight)
    return found[:count], values[:count]


@compiled
def _least_sum(seconds: Floats, cap: float, borders: Integers) -> float:
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
    parts[:, 1] = parts_of(seconds, borders)
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
