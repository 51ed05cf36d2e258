"""A closed form that a 1F1B pipeline with unequal stages never beats, and seldom misses by more than a thousandth.

Stage s gets its first micro-batch when those before it have forwarded it, and the iteration ends when they have its
last gradient: sum of their seconds. In between it works m times, and is idle twice: while its first micro-batch
travels to the end and back, of which it can fill as many forwards as 1F1B lets it run ahead, and in the same way at the
end with backwards. So seconds after a slow stage count twice, and those before it once.

By it splits of blocks over stages are made better block by block.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_MAX_STEPS = 24
_BETTER = 1.0 - 1e-9
_ROUNDED = 1.0 + 1e-9


class Pipeline(NamedTuple):
    """What all stages of a pipeline have in common.

    Attributes:
        num_micro_batches: At least 1.
        forward_part: The part of a stage's seconds that is forward; the largest where stages differ in it.
        backward_part: The part that is backward, in the same way.
        transfer_seconds: Per transfer between stages, at least.
    """

    num_micro_batches: int
    forward_part: float
    backward_part: float
    transfer_seconds: float


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
        num_micro_batches: This and the next three are those of :class:`Pipeline`.
        forward_part: See there.
        backward_part: See there.
        transfer_seconds: See there.
        limit: Once it takes longer than that, by how much does not matter.
    """
    return _bound(parts, Pipeline(num_micro_batches, forward_part, backward_part, transfer_seconds), limit)


@compiled
def _bound(parts: Floats, pipeline: Pipeline, limit: float) -> tuple[float, int]:
    """See :func:`pipeline_bound`."""
    num_stages, round_trip, after = len(parts), 2.0 * pipeline.transfer_seconds, 0.0
    for part in parts:
        after += part
    after += round_trip * (num_stages - 1)
    before, longest, slowest = 0.0, 0.0, 0
    for s in range(num_stages):
        after -= parts[s]
        least = claimed(pipeline, parts[s], before, after, num_stages - 1 - s)
        if least > longest:
            longest, slowest = least, s
            if least > limit:
                break
        before += parts[s] + round_trip
        after -= round_trip
    return longest, slowest


@compiled
def claimed(pipeline: Pipeline, part: float, before: float, after: float, num_later: int) -> float:
    """Seconds that the pipeline takes at least by what one stage says.

    Args:
        pipeline: Its micro-batches, and which part of their seconds is forward.
        part: Seconds of one micro-batch in the stage.
        before: The same of all stages before it, transfers both ways included.
        after: The same of all stages after it.
        num_later: How many stages come after it.
    """
    ahead = pipeline.num_micro_batches - 1
    least = before + pipeline.num_micro_batches * part
    # How much of its own seconds it can fill each of its two waits with.
    if num_later < ahead:
        idle = after - num_later * pipeline.forward_part * part
        if idle > 0.0:
            least += idle
        idle = after - num_later * pipeline.backward_part * part
    else:
        idle = after - ahead * min(pipeline.forward_part, pipeline.backward_part) * part
    if idle > 0.0:
        least += idle
    return least


@compiled
def climbed(
    prefix: Floats, borders: Integers, num_micro_batches: int, forward_part: float, transfer_seconds: float
) -> tuple[float, Integers]:
    """(Least seconds, borders) where no block that changes its stage makes a split better any more.

    First a block leaves the stage that takes longest, for anywhere; where none is better off so, one of the stages
    after it goes to one of those before it, since seconds after that stage count twice.

    Args:
        prefix: [stages, blocks + 1]: seconds of blocks 0 to b - 1, both ways, on the devices of stage s.
        borders: [stages + 1] of the split to start from, the outer ones included.
        num_micro_batches: Of the pipeline, at least 1.
        forward_part: The part of the seconds that is forward.
        transfer_seconds: Per transfer between stages.
    """
    pipeline = Pipeline(num_micro_batches, forward_part, 1.0 - forward_part, transfer_seconds)
    num_stages, borders, best = len(prefix), borders.copy(), np.empty_like(borders)
    before, takers, parts = np.empty(num_stages + 1), np.empty(num_stages, np.int64), split_parts(prefix, borders)
    seconds, slowest = _bound(parts, pipeline, math.inf)
    for _ in range(_MAX_STEPS):
        before[0] = 0.0
        for s in range(num_stages):
            before[s + 1] = before[s] + parts[s] + 2.0 * transfer_seconds
        limit, found, next_slowest = seconds * _BETTER, False, slowest
        most = limit * _ROUNDED
        for giver in range(slowest, num_stages):
            if found and giver == slowest + 1:
                break
            if borders[giver + 1] - borders[giver] < 2:
                continue
            count = _fill_takers(prefix, borders, parts, before, pipeline, giver, slowest, most, takers)
            for taker in takers[:count]:
                _move(borders, giver, taker)
                other, its_slowest = _bound(split_parts(prefix, borders), pipeline, limit)
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
def _fill_takers(
    prefix: Floats,
    borders: Integers,
    parts: Floats,
    before: Floats,
    pipeline: Pipeline,
    giver: int,
    slowest: int,
    most: float,
    takers: Integers,
) -> int:
    """Write down the stages that may take a block of another one, from first to last, and return how many they are.

    A block that goes from one stage to another makes each stage between them take one at one end and give one at the
    other. Most takers say themselves that the pipeline would last too long then; no other stage needs to be asked.

    Args:
        prefix: [stages, blocks + 1] as in :func:`climbed`.
        borders: [stages + 1] of the split.
        parts: [stages] seconds of its stages.
        before: [stages + 1] seconds of the stages before each, with the transfers between them and to it.
        pipeline: What is the same for all of them.
        giver: Who gives. The slowest stage gives to anybody, others to those before the slowest.
        slowest: The stage that takes longest.
        most: Seconds below which the pipeline has to stay.
        takers: [stages]; the first become those that were found.
    """
    num_stages, count = len(parts), 0
    whole = before[num_stages] - 2.0 * pipeline.transfer_seconds
    for step in (-1, 1):
        more = 0.0  # what the giver and all stages between it and the taker have more in all
        taker, stop = giver, slowest if step < 0 else num_stages
        while 0 <= taker < num_stages and (step < 0 or giver == slowest):
            row, first, last = prefix[taker], borders[taker], borders[taker + 1] - 1
            if taker != giver:
                takes = row[last + 2] - row[last + 1] if step < 0 else row[first] - row[first - 1]
                if taker < stop:
                    ahead, after = before[taker], whole - before[taker] - parts[taker]
                    if step < 0:
                        after += more
                    else:
                        ahead += more
                    if claimed(pipeline, parts[taker] + takes, ahead, after, num_stages - 1 - taker) < most:
                        takers[count] = taker
                        count += 1
                more += takes
            more -= row[first + 1] - row[first] if step < 0 else row[last + 1] - row[last]
            taker += step
        if step < 0:
            takers[:count] = takers[:count][::-1].copy()
    return count


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
