"""ResiHP: tensor group, then layer split, then migration of micro-batches.

Source: arXiv 2605.06374 v2. (1) Each tensor group keeps the k = 2^q fastest live devices that maximise
k x min throughput. (2) One layer split for all replicas, fewer layers on weak stages. (3) Progress-aware migration: a
stage of a replica that is more than delta forwards ahead takes the next micro-batch of the one furthest behind; stages
without any device are served by their peers. Deviations, all in its favour: the split is the best of unchanged, by the
mean and by the minimum of the replicas' speeds (the paper gives no optimiser); delta is the best of several (the paper
leaves it free), no migration included; planning takes 1.44 s, published at most. Missing shards come from peers;
when every replica has lost a stage it cannot be restored and the job ends.
"""

from collections.abc import Mapping

from evenkeel.layouts.layout import Stage
from evenkeel.simulator.baselines._cells import equal_stage, live_ranks, proportional_borders
from evenkeel.simulator.fleet.network import migrated_routes
from evenkeel.simulator.fleet.operation import Grid, Operation, grid_seconds, operation_of, operation_seconds
from evenkeel.simulator.fleet.strategy import Answer, Question
from evenkeel.simulator.fleet.transition import transition_seconds

DELTAS = (0, 1, 2, 4)
PLAN_SECONDS = 1.44


def kept_ranks(stage: Stage, throughputs: Mapping[int, float]) -> tuple[int, ...]:
    """The 2^q fastest live ranks of a group that maximise their number times the slowest of them."""
    ordered = sorted(live_ranks(stage, throughputs), key=lambda rank: (-throughputs[rank], rank))
    counts = [2**q for q in range(len(ordered).bit_length()) if 2**q <= len(ordered)]
    if not counts:
        return ()
    best = max(counts, key=lambda k: (k * throughputs[ordered[k - 1]], k))
    return tuple(sorted(ordered[:best]))


class ResiHP:
    """Exclusion, repartition, migration, in this order."""

    name = "ResiHP"

    def answer(self, question: Question) -> Answer:
        """The best operation that its three steps reach."""
        home, throughputs = question.home, question.throughputs
        if len(throughputs) == len(home.ranks) + len(home.standbys) and not question.anybody_slow:
            operation = operation_of(home)
        else:
            kept = [[kept_ranks(stage, throughputs) for stage in replica.stages] for replica in home.replicas]
            if not all(any(row[s] for row in kept) for s in range(len(kept[0]))):
                return Answer(operation=None)
            options = [
                option for borders in self._splits(question, kept) for option in self._migrated(question, kept, borders)
            ]
            operation = min(options, key=lambda pair: pair[0])[1]
        if operation == question.current:
            return Answer(operation=operation)
        pause = transition_seconds(question.cost.model, question.current, operation, question.costs)
        return Answer(operation=operation, pause_seconds=pause + PLAN_SECONDS)

    def _splits(self, question: Question, kept: list[list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
        home = question.home
        stages = home.replicas[0].stages
        splits = [(0, *(stage.stop_block for stage in stages))]

        def speed(ranks: tuple[int, ...]) -> float:
            return len(ranks) * min(question.throughputs[rank] for rank in ranks) if ranks else 0.0

        speeds = [[speed(row[s]) for row in kept] for s in range(len(stages))]
        mean = [sum(each) for each in speeds]
        least = [min(p for p in each if p > 0.0) for each in speeds]
        splits += [proportional_borders(home.num_blocks, combined) for combined in (mean, least)]
        return list(dict.fromkeys(splits))

    def _migrated(
        self, question: Question, kept: list[list[tuple[int, ...]]], borders: tuple[int, ...]
    ) -> list[tuple[float, Operation]]:
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
            routes, _ = migrated_routes(seconds, quotas, delta, cost.workload.transfer_seconds)
            operation = Operation(replicas=grid, quotas=quotas, routes=routes)
            found.append((operation_seconds(cost, operation, question.throughputs), operation))
        return found
