"""From a split of blocks over stages to a better one, block by block, by what the pipeline takes at least."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from services.scheduler.planning.pipeline_bound import least_one_f_one_b

_MAX_STEPS = 24
_BETTER = 1.0 - 1e-9


def climbed(
    prefix: Sequence[Sequence[float]],
    inner: Sequence[int],
    forward_part: float,
    num_micro_batches: int,
    transfer_seconds: float,
) -> tuple[float, tuple[int, ...]]:
    """(Least seconds, inner borders) where no block that changes its stage makes the split better any more.

    First blocks leave the stage that takes longest, for anywhere; then those after it for those before it, since
    seconds after that stage count twice.

    Args:
        prefix: ``prefix[s][b]``: seconds of blocks 0 to b - 1, forward and backward, on the devices of stage s.
        inner: Inner borders to start from.
        forward_part: The part of the seconds that is forward.
        num_micro_batches: Of the pipeline, at least 1.
        transfer_seconds: Per transfer between stages.
    """

    def least(borders: list[int], limit: float) -> tuple[float, int]:
        parts = [p[stop] - p[start] for p, (start, stop) in zip(prefix, pairwise(borders), strict=True)]
        return least_one_f_one_b(parts, forward_part, num_micro_batches, transfer_seconds, limit)

    borders = [0, *inner, len(prefix[0]) - 1]
    seconds, slowest = least(borders, math.inf)
    for _ in range(_MAX_STEPS):
        found, limit = None, seconds * _BETTER
        for moves in (_from(slowest, borders), _across(slowest, borders)):
            for taker, moved in moves:
                # Most takers would be the slowest then: that is seen at once.
                if (prefix[taker][moved[taker + 1]] - prefix[taker][moved[taker]]) * num_micro_batches >= limit:
                    continue
                other = least(moved, limit)
                if other[0] < limit:
                    found, limit = (*other, moved), other[0]
            if found:
                break
        if found is None:
            break
        seconds, slowest, borders = found
    return seconds, tuple(borders[1:-1])


def _moved(borders: list[int], giver: int, taker: int) -> list[int]:
    """Borders when one stage has a block less and another one more; what is between changes its blocks."""
    moved = list(borders)
    step = 1 if taker < giver else -1
    for border in range(min(giver, taker) + 1, max(giver, taker) + 1):
        moved[border] += step
    return moved


def _from(slowest: int, borders: list[int]) -> Iterator[tuple[int, list[int]]]:
    if borders[slowest + 1] - borders[slowest] > 1:
        yield from ((taker, _moved(borders, slowest, taker)) for taker in range(len(borders) - 1) if taker != slowest)


def _across(slowest: int, borders: list[int]) -> Iterator[tuple[int, list[int]]]:
    for giver in range(slowest + 1, len(borders) - 1):
        if borders[giver + 1] - borders[giver] > 1:
            yield from ((taker, _moved(borders, giver, taker)) for taker in range(slowest))
