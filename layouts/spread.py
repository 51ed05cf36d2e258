"""Who runs what is left of an iteration: a part of the micro-batches, spread over replicas as their quotas say."""

from collections.abc import Collection
from fractions import Fraction

from layouts.layout import Layout


def spread_micro_batches(layout: Layout, indices: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """Each replica's share of some of the iteration's micro-batches, ascending; a replica may get none.

    Shares follow the quotas as closely as whole micro-batches allow: the replica that has most to do in relation to its
    quota has as little as possible. Within that, a micro-batch stays where the layout has it.

    Raises:
        ValueError: An index that the layout does not have.
    """
    unknown = sorted(set(indices) - set(range(layout.num_micro_batches)))
    if unknown:
        raise ValueError(f"micro-batches {unknown}: the layout has 0 to {layout.num_micro_batches - 1}")
    quotas = [replica.num_micro_batches for replica in layout.replicas]
    counts = [0] * len(quotas)
    able = [d for d, quota in enumerate(quotas) if quota]
    for _ in set(indices):
        counts[min(able, key=lambda d: (Fraction(counts[d] + 1, quotas[d]), d))] += 1
    left = set(indices)
    shares: list[list[int]] = []
    for d, count in enumerate(counts):
        own = [index for index in layout.micro_batches_of(d) if index in left][:count]
        left.difference_update(own)
        shares.append(own)
    spare = iter(sorted(left))
    for share, count in zip(shares, counts, strict=True):
        share += [next(spare) for _ in range(count - len(share))]
    return tuple(tuple(sorted(share)) for share in shares)
