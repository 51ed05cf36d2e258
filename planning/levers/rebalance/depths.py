"""Lever: depths. What lives of the full shape's stages is dealt anew to pipelines, as deep as is fastest.

With few micro-batches a pipeline that lost a stage is not best off with the stages that are left: two pipelines of two
can beat one of three and one of one. For every way to deal the stages to at most as many pipelines as the full shape
has, the time is estimated as if blocks could be divided at will; the best few are proposed. Only for jobs with few
stages: in others :mod:`evenkeel.planning.levers.rebalance.move_ranks` does with few moves what this does with
    many.
Templates of pipelines are Oobleck's idea (SOSP'23).
"""

from collections.abc import Iterable, Iterator, Sequence

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.costs.risks import crowding
from evenkeel.planning.levers.balance.micro_batch_quota import best_quotas
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.repair import spread_quotas, with_standbys
from evenkeel.planning.situation import Situation

_MAX_GROUPS = 15
_MAX_WAYS = 400
_MAX_PROPOSED = 3

_Ranks = tuple[int, ...]


def ways_to_deal(total: int, num_pipelines: int, deepest: int) -> Iterator[tuple[int, ...]]:
    """Ways to write ``total`` as descending depths of pipelines, each from 1 to ``deepest``.

    >>> list(ways_to_deal(5, 2, 4))
    [(4, 1), (3, 2)]
    """
    if num_pipelines == 0:
        if total == 0:
            yield ()
        return
    for depth in range(min(deepest, total - num_pipelines + 1), 0, -1):
        if depth * num_pipelines < total:
            return
        for rest in ways_to_deal(total - depth, num_pipelines - 1, depth):
            yield (depth, *rest)


class Depths(Lever):
    """Pipelines of other depths from the stages that live."""

    name = "depths"
    asked = Asked.SHAPE, 4
    leads_on = False

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """Layouts of the living stages of the full shape, and of those that miss nobody; most promising first."""
        home, speeds = situation.home, situation.throughputs
        stages = [stage.ranks for replica in home.replicas for stage in replica.stages]
        if len(stages) > _MAX_GROUPS or all(speeds.get(rank, 0.0) >= 1.0 for rank in home.ranks):
            return
        living = [tuple(rank for rank in ranks if rank in speeds) for ranks in stages]
        whole = [ranks for ranks, full in zip(living, stages, strict=True) if len(ranks) == len(full)]
        found: list[tuple[float, tuple[int, ...], list[_Ranks]]] = []
        for groups in (whole, [ranks for ranks in living if ranks]):
            if groups and not any(groups == other for _, _, other in found):
                found += [(seconds, depths, groups) for seconds, depths in _promising(situation, groups)]
        found.sort(key=lambda each: each[:2])
        for _, depths, groups in found[:_MAX_PROPOSED]:
            layout = _dealt(situation, groups, depths)
            known = situation.device_bytes is not None  # the solver looks at what is left when the split is known
            if known or all(crowding(situation, replica.stages) <= 0.0 for replica in layout.replicas):
                yield layout

    def describe(self, before: Layout, after: Layout) -> str:
        """How deep the pipelines are."""
        was, becomes = ([len(replica.stages) for replica in layout.replicas] for layout in (before, after))
        return f"pipelines of {'+'.join(map(str, becomes))} stages (were {'+'.join(map(str, was))})"


def _promising(situation: Situation, groups: Sequence[_Ranks]) -> list[tuple[float, tuple[int, ...]]]:
    """(Estimated seconds, depths) of ways to deal the groups in this order."""
    home, speeds = situation.home, situation.throughputs
    width = max(len(stage.ranks) for stage in home.replicas[0].stages)
    rates = [sum(speeds[rank] for rank in group) / width for group in groups]
    deepest = min(home.num_blocks, max(len(replica.stages) for replica in home.replicas))
    found = []
    for count in range(1, min(len(groups), len(home.replicas)) + 1):
        for number, depths in enumerate(ways_to_deal(min(len(groups), count * deepest), count, deepest)):
            if number == _MAX_WAYS:
                break
            found.append((_estimate(rates, depths, home.num_micro_batches), depths))
    return sorted(found)[:_MAX_PROPOSED]


def _estimate(rates: Sequence[float], depths: Sequence[int], num_micro_batches: int) -> float:
    """Iteration time in units of a micro-batch on one healthy stage of full width, with blocks divided at will."""
    starts, taken = [], 0
    for depth in depths:
        starts.append(taken)
        taken += depth
    pace = [1.0 / sum(rates[start : start + depth]) for start, depth in zip(starts, depths, strict=True)]

    def seconds_of(d: int, quota: int) -> float:
        return (quota + depths[d] - 1) * pace[d] if quota else 0.0

    quotas = best_quotas(seconds_of, spread_quotas([0] * len(depths), num_micro_batches))
    return max(seconds_of(d, quota) for d, quota in enumerate(quotas))


def _dealt(situation: Situation, groups: Sequence[_Ranks], depths: Sequence[int]) -> Layout:
    """The groups in pipelines of these depths, blocks and micro-batches as even as can be."""
    home = situation.home
    quotas = spread_quotas([0] * len(depths), home.num_micro_batches)
    replicas, taken = [], 0
    for depth, quota in zip(depths, quotas, strict=True):
        stages, first = [], 0
        for s, ranks in enumerate(groups[taken : taken + depth]):
            stop = first + home.num_blocks // depth + (s < home.num_blocks % depth)
            stages.append(Stage(first_block=first, stop_block=stop, ranks=ranks, shares=(1,) * len(ranks)))
            first = stop
        taken += depth
        replicas.append(Replica(stages=tuple(stages), num_micro_batches=quota))
    bare = Layout(num_blocks=home.num_blocks, replicas=tuple(replicas), schedule=home.schedule, mix=home.mix)
    return with_standbys(bare, situation.throughputs.keys())
