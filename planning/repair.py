"""A layout without certain ranks: the least change that makes it whole again.

Shards of missing ranks are dropped from their stages. A stage that loses everyone either gives its blocks to its
neighbours or takes its whole replica out of the job, whose other ranks become standbys. The iteration keeps all its
micro-batches.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import chain, pairwise

from evenkeel.layouts.layout import Layout, Replica, Stage


def with_standbys(layout: Layout, live: Collection[int]) -> Layout:
    """The layout with exactly those live ranks as standbys that hold no position."""
    standbys = tuple(sorted(set(live).difference(layout.ranks)))
    if standbys == layout.standbys:
        return layout
    return replace(layout, standbys=standbys)


def same(one: Layout, other: Layout) -> bool:
    """True when everybody does the same under both; standbys do nothing."""
    same = one.mix == other.mix and one.schedule == other.schedule and one.routes == other.routes
    return same and one.replicas == other.replicas


def with_replicas(layout: Layout, replicas: Iterable[Replica], live: Collection[int]) -> Layout:
    """The layout with other replicas; live ranks that hold no position in them are its standbys."""
    return with_standbys(replace(layout, replicas=tuple(replicas), standbys=()), live)


def places_of(layout: Layout) -> dict[int, tuple[int, int]]:
    """(replica, stage) of each rank of a layout with one stage a rank."""
    return {
        rank: (d, s)
        for d, replica in enumerate(layout.replicas)
        for s, stage in enumerate(replica.stages)
        for rank in stage.ranks
    }


def spread_quotas(quotas: list[int], total: int) -> list[int]:
    """Quotas that sum to ``total``: whatever lacks goes to the smallest, whatever is too much leaves the largest."""
    lacking = total - sum(quotas)
    sign = 1 if lacking > 0 else -1
    ordered = [(sign * quota, d) for d, quota in enumerate(quotas)]
    heapify(ordered)
    for _ in range(abs(lacking)):
        quota, d = ordered[0]
        heapreplace(ordered, (quota + 1, d))
    return [sign * quota for quota, _ in sorted(ordered, key=lambda each: each[1])]


def ways_to_repair(layout: Layout, live: Collection[int]) -> Iterator[Layout]:
    """:func:`repaired` in every way to deal with stages that lost everybody; in one where none did."""
    broken = [stage for replica in layout.replicas for stage in replica.stages if stage.ranks[0] not in live]
    is_one = all(any(map(live.__contains__, stage.ranks)) for stage in broken)
    for merges in (True,) if is_one else (True, False):
        shape = repaired(layout, live, merges=merges)
        if shape is not None:
            yield shape


def repaired(layout: Layout, live: Collection[int], *, merges: bool = True) -> Layout | None:
    """``layout`` without ranks that are not live; None when no replica is left.

    Args:
        layout: Where to start from.
        live: Ranks that may be used; those without a position become standbys.
        merges: Whether a stage that loses all its ranks leaves its blocks to its neighbours; else its replica leaves.
    """
    left: list[tuple[Replica, tuple[Stage, ...]]] = []
    for replica in layout.replicas:
        stages = _alive(replica.stages, live)
        if stages and (merges or len(stages) == len(replica.stages)):
            left.append((replica, stages))
    if not left:
        return None
    quotas = spread_quotas([replica.num_micro_batches for replica, _ in left], layout.num_micro_batches)
    replicas = [
        was
        if stages is was.stages and quota == was.num_micro_batches
        else Replica(stages=stages, num_micro_batches=quota)
        for (was, stages), quota in zip(left, quotas, strict=True)
    ]
    return with_replicas(layout, replicas, live)


def _alive(stages: tuple[Stage, ...], live: Collection[int]) -> tuple[Stage, ...]:
    """The stages of live ranks; of blocks between two of them the one before gets half and the one after the rest."""
    if all(map(live.__contains__, chain.from_iterable([stage.ranks for stage in stages]))):
        return stages
    kept = [
        (stage, [(rank, share) for rank, share in zip(stage.ranks, stage.shares, strict=True) if rank in live])
        for stage in stages
    ]
    kept = [(stage, shards) for stage, shards in kept if shards]
    inner = [(one.stop_block + other.first_block) // 2 for (one, _), (other, _) in pairwise(kept)]
    alive = []
    for (first, stop), (_, shards) in zip(pairwise([0, *inner, stages[-1].stop_block]), kept, strict=False):
        ranks, shares = zip(*shards, strict=True)
        alive.append(Stage(first_block=first, stop_block=stop, ranks=ranks, shares=shares))
    return tuple(alive)
