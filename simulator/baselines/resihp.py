"""ResiHP: tensor group, then layer split, then migration of micro-batches.

Source: arXiv 2605.06374 v2. (1) Each tensor group keeps the k = 2^q fastest live devices that maximise
k x min throughput; live devices that are left over are node-local standbys, which fill up the other groups of their
node. (2) One layer split for all replicas, fewer layers on weak stages. (3) Progress-aware migration: a stage of a
replica that is more than delta forwards ahead takes the next micro-batch of the one furthest behind; stages without any
device are served by their peers. Deviations, all in its favour: the split is the best that moving one layer at a time
from the home split, or from those by the mean and the minimum of the replicas' speeds, comes to (the paper gives no
optimiser); delta is the best of several (the paper leaves it free), no migration included; planning takes 1.44 s,
published at most. Missing shards come from peers; when every replica has lost a stage it cannot be restored and the job
ends.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from evenkeel.simulator.baselines._cells import equal_stage, live_ranks, moved, proportional_borders
from evenkeel.simulator.fleet.operation.network import migrated_routes
from evenkeel.simulator.fleet.operation.operation import (
    Grid,
    Operation,
    grid_seconds,
    operation_of,
    operation_seconds,
)
from evenkeel.simulator.fleet.strategy import Answer, Question

DELTAS = (0, 1, 2, 4)
PLAN_SECONDS = 1.44


Kept = list[list[tuple[int, ...]]]
"""Ranks of each stage of each replica; none where nobody is left."""


def kept_ranks(live: Sequence[int], throughputs: Mapping[int, float], most: int) -> tuple[int, ...]:
    """The 2^q fastest of some live ranks, ``most`` of them at most, that maximise their number times the slowest."""
    ordered = sorted(live, key=lambda rank: (-throughputs[rank], rank))
    counts = [2**q for q in range(len(ordered).bit_length()) if 2**q <= min(len(ordered), most)]
    if not counts:
        return ()
    best = max(counts, key=lambda k: (k * throughputs[ordered[k - 1]], k))
    return tuple(sorted(ordered[:best]))


def with_standbys(question: Question) -> Kept:
    """What each group keeps; groups of a node fill one another up from what they do not use, the weakest first."""
    home, throughputs, size = question.home, question.throughputs, question.topology.devices_per_node
    stages = [stage for replica in home.replicas for stage in replica.stages]
    kept = [kept_ranks(live_ranks(stage, throughputs), throughputs, len(stage.ranks)) for stage in stages]
    node_of = [stage.ranks[0] // size for stage in stages]

    def speed(group: int) -> float:
        return len(kept[group]) * min((throughputs[rank] for rank in kept[group]), default=0.0)

    for node in dict.fromkeys(node_of):
        groups = [group for group, place in enumerate(node_of) if place == node]
        own = {rank for group in groups for rank in live_ranks(stages[group], throughputs)}
        spare = own.difference(*[kept[group] for group in groups])
        for group in sorted(groups, key=lambda group: (speed(group), group)):
            wider = kept_ranks([*kept[group], *spare], throughputs, len(stages[group].ranks))
            before = speed(group)
            spare, kept[group], old = spare.union(kept[group]).difference(wider), wider, kept[group]
            if speed(group) <= before:
                spare, kept[group] = spare.union(wider).difference(old), old
    found = iter(kept)
    return [[next(found) for _ in replica.stages] for replica in home.replicas]


class ResiHP:
    """Exclusion, repartition, migration, in this order."""

    name = "ResiHP"

    def answer(self, question: Question) -> Answer:
        """The best operation that its three steps reach."""
        home, throughputs = question.home, question.throughputs
        if len(throughputs) == len(home.ranks) + len(home.standbys) and not question.anybody_slow:
            operation = operation_of(home)
        else:
            kept = with_standbys(question)
            if not all(any(row[s] for row in kept) for s in range(len(kept[0]))):
                return Answer(operation=None)
            options = [
                option for borders in self._splits(question, kept) for option in self._migrated(question, kept, borders)
            ]
            operation = min(options, key=lambda pair: pair[0])[1]
        if operation == question.current:
            return Answer(operation=operation)
        return moved(question, operation, more_seconds=PLAN_SECONDS)

    def _splits(self, question: Question, kept: Kept) -> list[tuple[int, ...]]:
        home = question.home
        stages = home.replicas[0].stages
        splits = [(0, *(stage.stop_block for stage in stages))]

        def speed(ranks: tuple[int, ...]) -> float:
            return len(ranks) * min(question.throughputs[rank] for rank in ranks) if ranks else 0.0

        speeds = [[speed(row[s]) for row in kept] for s in range(len(stages))]
        mean = [sum(each) for each in speeds]
        least = [min(p for p in each if p > 0.0) for each in speeds]
        splits += [proportional_borders(home.num_blocks, combined) for combined in (mean, least)]
        splits.append(min([self._climbed(question, kept, borders) for borders in splits])[1])
        return list(dict.fromkeys(splits))

    @staticmethod
    def _climbed(question: Question, kept: Kept, borders: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """The split to which moving one border by one layer leads while that makes the slowest whole replica faster."""
        whole = [row for row in kept if all(row)]

        def seconds(borders: tuple[int, ...]) -> float:
            grid = tuple(
                tuple(
                    equal_stage(first, stop, ranks) for (first, stop), ranks in zip(pairwise(borders), row, strict=True)
                )
                for row in whole
            )
            plain = Operation(replicas=grid, quotas=tuple([quota] * len(whole)))
            return operation_seconds(question.cost, plain, question.throughputs) if whole else 0.0

        quota = question.home.replicas[0].num_micro_batches
        best = seconds(borders), borders
        while True:
            nearby = [
                (*borders[:s], borders[s] + step, *borders[s + 1 :])
                for s in range(1, len(borders) - 1)
                for step in (-1, 1)
            ]
            found = [(seconds(each), each) for each in nearby if all(a < b for a, b in pairwise(each))]
            if not found or min(found)[0] >= best[0]:
                return best
            best = min(found)
            borders = best[1]

    def _migrated(self, question: Question, kept: Kept, borders: tuple[int, ...]) -> list[tuple[float, Operation]]:
        home, cost = question.home, question.cost
        grid: Grid = tuple(
            tuple(equal_stage(borders[s], borders[s + 1], ranks) if ranks else None for s, ranks in enumerate(row))
            for row in kept
        )
        quotas = tuple(replica.num_micro_batches for replica in home.replicas)
        found = []
        if all(all(row) for row in kept):
            plain = Operation(replicas=grid, quotas=quotas)
            found.append((operation_seconds(cost, plain, question.throughputs), plain))
        seconds = grid_seconds(cost, grid, question.throughputs)
        for delta in DELTAS:
            routes = migrated_routes(seconds, quotas, delta, cost.workload.transfer_seconds)
            operation = Operation(replicas=grid, quotas=quotas, routes=routes)
            found.append((operation_seconds(cost, operation, question.throughputs), operation))
        return found
