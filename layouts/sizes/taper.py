"""Tapered micro-batches: smaller ones first and last make the bubble of a pipeline smaller than equal ones do.

A 1F1B pipeline fills at the pace of the first micro-batch's forward and drains at that of the last one's backward;
what is larger in between hides behind the work of its neighbours. Stages are taken as equal and a backward as twice a
forward. The best sizes are a linear program; the recursion here is within two percent of it and needs no solver, so
that every rank computes the same (four stages and eight micro-batches: 2.57 where equal ones take 2.75 and the optimum
with sizes of at most 1.5 is 2.55).
"""

from collections.abc import Sequence
from functools import lru_cache

_FORWARD = 1.0 / 3.0
_BACKWARD = 2.0 / 3.0
_FIRST_TO_LAST = tuple(step / 20 for step in range(4, 25))


def one_f_one_b_seconds(sizes: Sequence[float], fill: int) -> float:
    """Longest path of 1F1B over micro-batches that differ, in units of a micro-batch of size 1 on one stage.

    Args:
        sizes: Of the micro-batches, in the order in which they run.
        fill: Stages - 1; all stages are equal.

    >>> one_f_one_b_seconds([3.0] * 8, 3)
    33.0
    """
    free = [0.0] * (fill + 1)
    arrived: list[list[float]] = [[] for _ in range(fill + 2)]
    arrived[fill + 1] = [0.0] * len(sizes)
    num = len(sizes)
    for step in range(num + fill):
        before = 0.0
        for stage in range(fill + 1):
            now = free[stage]
            if step < num:
                now = before = max(now, before) + sizes[step] * _FORWARD
            back = step - fill + stage
            if 0 <= back < num:
                now = max(now, arrived[stage + 1][back]) + sizes[back] * _BACKWARD
                arrived[stage].append(now)
            free[stage] = now
    return max(free)


@lru_cache(maxsize=256)
def taper(num_micro_batches: int, fill: int) -> tuple[float, ...]:
    """Sizes of micro-batches, 1 = mean, with which a pipeline of ``fill`` + 1 stages is done soonest.

    Rising: no descent through the stages may end later than that of the first micro-batch, though it hides backward
    work of the ``fill`` before it; falling: likewise for the ascent of the last one. Where one is as large as the
    other, one in between; how the first compares with the last is tried out.

    >>> [round(size, 2) for size in taper(8, 3)]
    [0.48, 0.79, 1.32, 1.34, 1.26, 1.08, 0.93, 0.79]
    """
    even = (1.0,) * num_micro_batches
    if not fill or num_micro_batches < 2:
        return even
    falling = [1.0]
    while len(falling) < num_micro_batches:
        falling.append(1.0 + sum(falling[-fill:]) * _FORWARD / (fill * _BACKWARD))
    falling.reverse()
    best, chosen = one_f_one_b_seconds(even, fill), even
    for first in _FIRST_TO_LAST:
        sizes = [min(first, falling[0])]
        for limit in falling[1:]:
            sizes.append(min(limit, sizes[0] + sum(sizes[-fill:]) * _BACKWARD / (fill * _FORWARD)))
        total = sum(sizes)
        found = tuple(size * num_micro_batches / total for size in sizes)
        seconds = one_f_one_b_seconds(found, fill)
        if seconds < best:
            best, chosen = seconds, found
    return chosen
