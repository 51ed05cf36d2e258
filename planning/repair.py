"""A layout without certain ranks: the least change that makes it whole again.

Shards of missing ranks are dropped from their stages. A stage that loses everyone either gives its blocks to its
neighbours or takes its whole replica out of the job, whose other ranks become standbys. The iteration keeps all its
micro-batches.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from heapq import heapify, heapreplace
from itertools import pairwise

from evenkeel.layouts.layout import Layout, Replica, Stage


class EmptyStage(StrEnum):
    """What happens to a stage without a live rank."""

    MERGE = "merge"
    DROP_REPLICA = "drop_replica"


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


def _merge_empty(stages: list[Stage | tuple[int, int]]) -> tuple[Stage, ...] | None:
    """Blocks of stages without ranks, given as (first, stop), go half to the stage before and half to the one after."""
    alive = [index for index, stage in enumerate(stages) if isinstance(stage, Stage)]
    if not alive:
        return None
    bounds = [(s.first_block, s.stop_block) if isinstance(s, Stage) else s for s in stages]
    borders = [0]
    for left, right in pairwise(alive):
        first, stop = bounds[left][1], bounds[right][0]
        borders.append(first + (stop - first) // 2)
    borders.append(bounds[-1][1])
    merged = []
    for number, index in enumerate(alive):
        stage = stages[index]
        assert isinstance(stage, Stage)
        merged.append(
            Stage(first_block=borders[number], stop_block=borders[number + 1], ranks=stage.ranks, shares=stage.shares)
        )
    return tuple(merged)


def ways_to_repair(layout: Layout, live: Collection[int]) -> Iterator[Layout]:
    """:func:`repaired` in every way to deal with stages that lost everybody; in one where none did."""
    broken = [stage for replica in layout.replicas for stage in replica.stages if stage.ranks[0] not in live]
    is_one = all(any(map(live.__contains__, stage.ranks)) for stage in broken)
    for on_empty in (EmptyStage.MERGE,) if is_one else EmptyStage:
        shape = repaired(layout, live, on_empty)
        if shape is not None:
            yield shape


def repaired(layout: Layout, live: Collection[int], on_empty: EmptyStage = EmptyStage.MERGE) -> Layout | None:
    """``layout`` without ranks that are not live; None when no replica is left.

    Args:
        layout: Where to start from.
        live: Ranks that may be used; those without a position become standbys.
        on_empty: What happens to a stage that loses all its ranks.
    """
    shapes: list[tuple[Stage, ...]] = []
    quotas: list[int] = []
    sound: dict[int, Replica] = {}
    for replica in layout.replicas:
        if all(map(live.__contains__, replica.ranks)):
            sound[len(shapes)] = replica
            shapes.append(replica.stages)
            quotas.append(replica.num_micro_batches)
            continue
        stages: list[Stage | tuple[int, int]] = []
        for stage in replica.stages:
            kept = [(rank, share) for rank, share in zip(stage.ranks, stage.shares, strict=True) if rank in live]
            if kept:
                ranks, shares = zip(*kept, strict=True)
                stages.append(
                    Stage(first_block=stage.first_block, stop_block=stage.stop_block, ranks=ranks, shares=shares)
                )
            else:
                stages.append((stage.first_block, stage.stop_block))
        whole = all(isinstance(stage, Stage) for stage in stages)
        shape = _merge_empty(stages) if whole or on_empty is EmptyStage.MERGE else None
        if shape is not None:
            shapes.append(shape)
            quotas.append(replica.num_micro_batches)
    if not shapes:
        return None
    quotas = spread_quotas(quotas, layout.num_micro_batches)
    replicas = [
        sound[d]
        if d in sound and sound[d].num_micro_batches == quota
        else Replica(stages=shape, num_micro_batches=quota)
        for d, (shape, quota) in enumerate(zip(shapes, quotas, strict=True))
    ]
    return with_replicas(layout, replicas, live)


def narrowed(layout: Layout, width: int, speeds: Mapping[int, float]) -> Layout:
    """The layout with no stage wider than ``width``: the slowest shards of wider ones become standbys.

    Args:
        layout: Where to start from; itself when no stage is wider.
        width: Most shards of a stage.
        speeds: Of the live ranks.
    """

    def narrow(stage: Stage) -> Stage:
        if len(stage.ranks) <= width:
            return stage
        fastest = sorted(stage.ranks, key=lambda rank: (-speeds[rank], rank))[:width]
        kept = [(rank, share) for rank, share in zip(stage.ranks, stage.shares, strict=True) if rank in fastest]
        ranks, shares = zip(*kept, strict=True)
        return replace(stage, ranks=ranks, shares=shares)

    if all(len(stage.ranks) <= width for replica in layout.replicas for stage in replica.stages):
        return layout
    replicas = [replace(r, stages=tuple(map(narrow, r.stages))) for r in layout.replicas]
    return with_replicas(layout, replicas, speeds.keys())
