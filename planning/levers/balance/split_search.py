"""Which splits of blocks over stages can be the fastest.

A pipeline of stages with seconds c_s per micro-batch takes about sum(c) + (m - 1) max(c). For a cap on the maximum,
dynamic programming over (stage, border) finds the least sum; lowering the cap from one such split to the next finds
all that no other beats in both, so the best of that form is exact for any m. Which borders can matter at all follows
from the best split known so far: a stage may last no longer than that split leaves over for the slowest stage, and with
that cap few borders are left.

``prefix[s, b]`` is everywhere: seconds of blocks 0 to b - 1, forward and backward, on the devices of stage s.
"""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_NUM_COMPARED = 3
_SLACK = 0.3
_EPSILON = 1e-9
_TIGHT = 0.01


@compiled
def split_candidates(prefix: Floats, num_micro_batches: int, incumbent: float) -> Integers:
    """The most promising splits, best first: [at most 3, stages + 1] borders, the outer ones included.

    A split that no other beats in both sum and maximum is the one of least sum under some cap on the maximum. They are
    found one after the other by lowering the cap: below the maximum of the split before, and to what a split as good as
    the best one has left for its slowest stage, whose sum can be no less than that of the split before.

    Args:
        prefix: [stages, blocks + 1] as above.
        num_micro_batches: Weight of the slowest stage.
        incumbent: sum + (m - 1) max of a known split; worse ones are cut off.
    """
    num_stages, num_blocks = len(prefix), prefix.shape[1] - 1
    weight, least = max(0, num_micro_batches - 1), 0.0
    for b in range(num_blocks):
        quickest = math.inf
        for s in range(num_stages):
            quickest = min(quickest, prefix[s, b + 1] - prefix[s, b])
        least += quickest
    best, cap = incumbent * (1.0 + _EPSILON), math.inf
    slack = (1.0 + _EPSILON) * (1.0 + _SLACK / (weight + 6))  # the fewer micro-batches, the less exact the formula
    borders = np.empty(num_stages + 1, np.int64)
    if weight:
        # A split with nearly the least maximum is a good one to start from.
        tight = _least_maximum(prefix, least / num_stages, (best - least) / weight * (1.0 + _EPSILON), _TIGHT)
        total = _least_sum(prefix, tight, borders)
        if total < math.inf:
            best = min(best, total + weight * tight)
        cap = (best * slack - least) / weight * (1.0 + _EPSILON)
    found, values = np.empty((_NUM_COMPARED, num_stages + 1), np.int64), np.full(_NUM_COMPARED, math.inf)
    while True:
        total = _least_sum(prefix, cap, borders)
        if total == math.inf:
            break
        slowest = 0.0
        for s in range(num_stages):
            slowest = max(slowest, prefix[s, borders[s + 1]] - prefix[s, borders[s]])
        value = total + weight * slowest
        _insert(found, values, borders, value)
        if not weight:
            break
        best = min(best, value)
        cap = min(slowest * (1.0 - _EPSILON), (best * slack - total) / weight)
    count = 0
    while count < _NUM_COMPARED and values[count] < math.inf and values[count] <= best * slack:
        count += 1
    return found[:count]


@compiled
def least_slowest(prefix: Floats) -> float:
    """Seconds that the slowest stage of no split gets below; of stages of one speed up to 0.2 % too few."""
    high, rate = 0.0, 0.0
    for s in range(len(prefix)):
        high = max(high, prefix[s, -1])
        rate += 1.0 / prefix[s, -1]
    return _least_maximum(prefix, 1.0 / rate, high, 1e-3) * (1.0 - 1e-3)


@compiled
def _insert(found: Integers, values: Floats, borders: Integers, value: float) -> None:
    """Put a split among the best so far; of equally good ones the first has the lower borders."""
    place = len(values)
    while place and (
        value < values[place - 1] or (value == values[place - 1] and _is_lower(borders, found[place - 1]))
    ):
        place -= 1
    for other in range(len(values) - 1, place, -1):
        values[other] = values[other - 1]
        found[other] = found[other - 1]
    if place < len(values):
        values[place] = value
        found[place] = borders


@compiled
def _is_lower(one: Integers, other: Integers) -> bool:
    for border in range(len(one)):
        if one[border] != other[border]:
            return bool(one[border] < other[border])
    return False


@compiled
def _least_maximum(prefix: Floats, low: float, high: float, tolerance: float) -> float:
    """The least cap with which a split may exist, up to a relative tolerance, from above; ``high`` is one."""
    windows = np.empty((len(prefix), 2), np.int64)
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        if _fill_windows(prefix, middle, windows):
            high = middle
        else:
            low = middle
    return high


@compiled
def _fill_windows(prefix: Floats, cap: float, windows: Integers) -> bool:
    """For each stage borders [least, most] out of which it does not stop when no stage lasts longer than ``cap``.

    False only when no split keeps to the cap. A block that alone lasts longer on some stage can leave a window with
    borders at which nothing fits.
    """
    num_stages, num_blocks = len(prefix), prefix.shape[1] - 1
    stop = 0
    for s in range(num_stages):
        start, last = stop, num_blocks - num_stages + s + 1
        while True:
            stop = min(_first_above(prefix[s], prefix[s, start] + cap) - 1, last)
            if stop > start:
                break
            if start <= s:
                return False
            start -= 1
        windows[s, 1] = stop
    if stop < num_blocks:
        return False
    start = num_blocks
    windows[num_stages - 1, 0] = num_blocks
    for s in range(num_stages - 1, 0, -1):
        stop = start
        while True:
            start = max(_first_at_least(prefix[s], prefix[s, stop] - cap), s)
            if start < stop:
                break
            if stop >= num_blocks - num_stages + s + 1:
                return False
            stop += 1
        windows[s - 1, 0] = start
    for s in range(num_stages):
        if windows[s, 0] > windows[s, 1]:
            return False
    return bool(prefix[0, windows[0, 0]] <= cap)


@compiled
def _least_sum(prefix: Floats, cap: float, borders: Integers) -> float:
    """Seconds of all stages of the split of least sum in which none lasts longer than ``cap``; infinite without one.

    Its borders, the outer ones included, are written to ``borders``.
    """
    num_stages, num_blocks = len(prefix), prefix.shape[1] - 1
    windows = np.empty((num_stages, 2), np.int64)
    if not _fill_windows(prefix, cap, windows):
        return math.inf
    # Of each stage: seconds up to where it stops and of what is left then. Its own are a difference to where it starts.
    totals, best_stops = np.empty(num_blocks + 1), np.empty((num_stages, num_blocks + 1), np.int64)
    bottom, top = num_blocks, num_blocks
    rests = np.zeros(num_blocks + 1)
    for s in range(num_stages - 1, -1, -1):
        row = prefix[s]
        for stop in range(bottom, top + 1):
            totals[stop] = row[stop] + rests[stop]
        low, high = (windows[s - 1, 0], windows[s - 1, 1]) if s else (0, 0)
        for start in range(low, high + 1):
            least, found, most = math.inf, 0, row[start] + cap
            for stop in range(max(start + 1, bottom), top + 1):
                if row[stop] > most:
                    break
                if totals[stop] < least:
                    least, found = totals[stop], stop
            rests[start] = least - row[start]
            best_stops[s, start] = found
        bottom, top = low, high
    if rests[0] == math.inf:
        return math.inf
    borders[0] = 0
    for s in range(num_stages):
        borders[s + 1] = best_stops[s, borders[s]]
    return float(rests[0])


@compiled
def _first_above(row: Floats, value: float) -> int:
    """Where the first number above a value stands in a row that does not fall."""
    low, high = 0, len(row)
    while low < high:
        middle = (low + high) // 2
        if row[middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _first_at_least(row: Floats, value: float) -> int:
    """Where the first number of at least a value stands in a row that does not fall."""
    low, high = 0, len(row)
    while low < high:
        middle = (low + high) // 2
        if row[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low
