"""Who runs what is left of an iteration: a part of the micro-batches, spread over replicas as their quotas say."""

from collections.abc import Collection, Sequence
from fractions import Fraction
from heapq import heapify, heapreplace
from itertools import accumulate

from evenkeel.layouts.layout import Layout


def spread_micro_batches(layout: Layout, indices: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """Each replica's share of some of the iteration's micro-batches, ascending; a replica may get none.

    Shares follow the quotas as closely as whole micro-batches allow: the replica that has most to do in relation to its
    quota has as little as possible. Within that, a micro-batch stays where the layout has it.

    Raises:
        ValueError: An index that the layout does not have.
    """
    left = set(indices)
    unknown = sorted(left.difference(range(layout.num_micro_batches)))
    if unknown:
        raise ValueError(f"micro-batches {unknown}: the layout has 0 to {layout.num_micro_batches - 1}")
    quotas = [replica.num_micro_batches for replica in layout.replicas]
    stops = tuple(accumulate(quotas))
    shares: list[list[int]] = []
    counts = _counts(quotas, len(left))
    for quota, stop, count in zip(quotas, stops, counts, strict=True):
        own = [index for index in range(stop - quota, stop) if index in left][:count]
        left.difference_update(own)
        shares.append(own)
    spare = iter(sorted(left))
    for share, count in zip(shares, counts, strict=True):
        share += [next(spare) for _ in range(count - len(share))]
    return tuple(tuple(sorted(share)) for share in shares)


def _counts(quotas: Sequence[int], total: int) -> list[int]:
    """How many each gets, one after another to whom it leaves with least in relation to its quota."""
    # What comes before the fair share of everybody is handed out at once: fewer than there are replicas are left.
    counts = [total * quota // sum(quotas) for quota in quotas]
    turns = [
        (Fraction(count + 1, quota), d) for d, (count, quota) in enumerate(zip(counts, quotas, strict=True)) if quota
    ]
    heapify(turns)
    for _ in range(total - sum(counts)):
        level, d = turns[0]
        counts[d] += 1
        heapreplace(turns, (level + Fraction(1, quotas[d]), d))
    return counts
