"""A closed form that a 1F1B pipeline with unequal stages never beats, and seldom misses by more than a thousandth.

Stage s gets its first micro-batch when those before it have forwarded it, and the iteration ends when they have its
last gradient: sum of their seconds. In between it works m times, and is idle twice: while its first micro-batch
travels to the end and back, of which it can fill as many forwards as 1F1B lets it run ahead, and in the same way at the
end with backwards. So seconds after a slow stage count twice, and those before it once.

By it splits of blocks over stages are made better block by block.
"""

import math

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_MAX_STEPS = 24
_BETTER = 1.0 - 1e-9
_ROUNDED = 1.0 + 1e-9


@compiled
def pipeline_bound(
    parts: Floats,
    num_micro_batches: int,
    forward_part: float,
    backward_part: float,
    transfer_seconds: float,
    limit: float,
) -> tuple[float, int]:
    """(Seconds that a 1F1B pipeline takes at least, the stage that says so).

    Args:
        parts: [stages] seconds of one micro-batch in each stage, forward and backward together.
        num_micro_batches: Of the pipeline, at least 1.
        forward_part: The part of a stage's seconds that is forward; the largest where stages differ in it.
        backward_part: The part that is backward, in the same way.
        transfer_seconds: Per transfer between stages, at least.
        limit: Once it takes longer than that, by how much does not matter.
    """
    num_stages, round_trip, after = len(parts), 2.0 * transfer_seconds, 0.0
    for part in parts:
        after += part
    after += round_trip * (num_stages - 1)
    before, longest, slowest = 0.0, 0.0, 0
    for s in range(num_stages):
        after -= parts[s]
        left = num_stages - 1 - s
        least = _claimed(parts[s], before, after, left, num_micro_batches, forward_part, backward_part)
        if least > longest:
            longest, slowest = least, s
            if least > limit:
                break
        before += parts[s] + round_trip
        after -= round_trip
    return longest, slowest


@compiled
def _claimed(
    part: float,
    before: float,
    after: float,
    left: int,
    num_micro_batches: int,
    forward_part: float,
    backward_part: float,
) -> float:
    """Seconds that the pipeline takes at least by what one stage says.

    Args:
        part: Seconds of one micro-batch in it.
        before: The same of the stages before it, transfers both ways included.
        after: The same of the stages after it.
        left: How many stages these are.
        num_micro_batches: These three are those of :func:`pipeline_bound`.
        forward_part: -
        backward_part: -
    """
    ahead = num_micro_batches - 1
    least = before + num_micro_batches * part
    # How much of its own seconds it can fill each of its two waits with.
    if left < ahead:
        idle = after - left * forward_part * part
        if idle > 0.0:
            least += idle
        idle = after - left * backward_part * part
    else:
        idle = after - ahead * min(forward_part, backward_part) * part
    if idle > 0.0:
        least += idle
    return least


@compiled
def climbed(
    prefix: Floats, borders: Integers, num_micro_batches: int, forward_part: float, transfer_seconds: float
) -> tuple[float, Integers]:
    """(Least seconds, borders) where no block that changes its stage makes a split better any more.

    First blocks leave the stage that takes longest, for anywhere; then those after it for those before it, since
    seconds after that stage count twice. A block that goes from one stage to another makes those between give one at
    one end and take one at the other. Most takers would last too long then, which is seen without the other stages.

    Args:
        prefix: [stages, blocks + 1]: seconds of blocks 0 to b - 1, both ways, on the devices of stage s.
        borders: [stages + 1] of the split to start from, the outer ones included.
        num_micro_batches: Of the pipeline, at least 1.
        forward_part: The part of the seconds that is forward.
        transfer_seconds: Per transfer between stages.
    """
    num_stages, backward_part, round_trip = len(prefix), 1.0 - forward_part, 2.0 * transfer_seconds
    borders, best = borders.copy(), np.empty_like(borders)
    before, takers = np.empty(num_stages), np.empty(num_stages, np.int64)
    parts = split_parts(prefix, borders)
    seconds, slowest = pipeline_bound(parts, num_micro_batches, forward_part, backward_part, transfer_seconds, math.inf)
    for _ in range(_MAX_STEPS):
        whole = 0.0
        for s in range(num_stages):
            before[s] = whole
            whole += parts[s] + round_trip
        whole -= round_trip
        limit = seconds * _BETTER
        most, found, next_slowest = limit * _ROUNDED, False, slowest
        for giver in range(slowest, num_stages):
            if found and giver == slowest + 1:
                break
            if borders[giver + 1] - borders[giver] < 2:
                continue
            num_takers = 0
            more = 0.0  # what the stages after the taker have more in all
            for taker in range(giver, -1, -1):
                row, start, stop, part = prefix[taker], borders[taker], borders[taker + 1], parts[taker]
                if taker < giver:
                    takes = row[stop + 1] - row[stop]
                    if taker < slowest:
                        after, left = whole - before[taker] - part + more, num_stages - 1 - taker
                        if (
                            _claimed(
                                part + takes, before[taker], after, left, num_micro_batches, forward_part, backward_part
                            )
                            < most
                        ):
                            takers[num_takers] = taker
                            num_takers += 1
                    more += takes
                more -= row[start + 1] - row[start]
            takers[:num_takers] = takers[:num_takers][::-1].copy()
            if giver == slowest:
                more = 0.0  # what the stages before the taker have more in all
                for taker in range(giver, num_stages):
                    row, start, stop, part = prefix[taker], borders[taker], borders[taker + 1], parts[taker]
                    if taker > giver:
                        takes = row[start] - row[start - 1]
                        after, left = whole - before[taker] - part, num_stages - 1 - taker
                        if (
                            _claimed(
                                part + takes,
                                before[taker] + more,
                                after,
                                left,
                                num_micro_batches,
                                forward_part,
                                backward_part,
                            )
                            < most
                        ):
                            takers[num_takers] = taker
                            num_takers += 1
                        more += takes
                    more -= row[stop] - row[stop - 1]
            for taker in takers[:num_takers]:
                _move(borders, giver, taker)
                other, its_slowest = pipeline_bound(
                    split_parts(prefix, borders),
                    num_micro_batches,
                    forward_part,
                    backward_part,
                    transfer_seconds,
                    limit,
                )
                if other < limit:
                    found, limit, next_slowest = True, other, its_slowest
                    best[:] = borders
                _move(borders, taker, giver)
        if not found:
            break
        seconds, slowest = limit, next_slowest
        borders[:] = best
        parts = split_parts(prefix, borders)
    return seconds, borders


@compiled
def split_parts(prefix: Floats, borders: Integers) -> Floats:
    """[stages] seconds of each stage of a split; arguments as in :func:`climbed`."""
    parts = np.empty(len(prefix))
    for s in range(len(prefix)):
        parts[s] = prefix[s, borders[s + 1]] - prefix[s, borders[s]]
    return parts


@compiled
def _move(borders: Integers, giver: int, taker: int) -> None:
    """One stage has a block less and another one more; what is between changes its blocks."""
    step = 1 if taker < giver else -1
    for border in range(min(giver, taker) + 1, max(giver, taker) + 1):
        borders[border] += step
