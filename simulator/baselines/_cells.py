"""Parts that several published systems share: their cells (one stage of one replica), simple splits, how they go on."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from evenkeel.layouts.cut import even_parts
from evenkeel.layouts.layout import Layout, Stage
from evenkeel.planning.levers.balance.micro_batch_quota import best_quotas
from evenkeel.simulator.fleet.cost.transition import rollback_seconds, transition_seconds
from evenkeel.simulator.fleet.operation.operation import Grid, Operation, operation_of
from evenkeel.simulator.fleet.strategy import Answer, Question


def equal_stage(first_block: int, stop_block: int, ranks: Sequence[int]) -> Stage:
    """A stage cut into equal shards."""
    return Stage(first_block=first_block, stop_block=stop_block, ranks=tuple(ranks), shares=(1,) * len(ranks))


def live_ranks(stage: Stage, throughputs: Mapping[int, float]) -> tuple[int, ...]:
    """Ranks of a stage that are alive."""
    return tuple(rank for rank in stage.ranks if rank in throughputs)


def whole_cells(home: Layout, throughputs: Mapping[int, float]) -> list[tuple[int, int]]:
    """(replica, stage) of cells without a dead rank: all that a system which drops tensor groups still has."""
    return [
        (d, s)
        for d, replica in enumerate(home.replicas)
        for s, stage in enumerate(replica.stages)
        if all(rank in throughputs for rank in stage.ranks)
    ]


def whole_replicas(home: Layout, throughputs: Mapping[int, float]) -> list[int]:
    """Replicas without a dead rank."""
    return [d for d, replica in enumerate(home.replicas) if all(rank in throughputs for rank in replica.ranks)]


def proportional_borders(num_blocks: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Borders of stages whose blocks are in proportion to speeds, at least one each."""
    total = sum(speeds)
    borders = [0, *(round(num_blocks * part / total) for part in accumulate(speeds))]
    for s in range(1, len(borders)):
        borders[s] = max(borders[s], borders[s - 1] + 1)
    for s in range(len(borders) - 2, -1, -1):
        borders[s] = min(borders[s], borders[s + 1] - 1 if s + 1 < len(borders) - 1 else num_blocks - 1)
    borders[0], borders[-1] = 0, num_blocks
    assert all(a < b for a, b in pairwise(borders)), (borders, num_blocks)
    return tuple(borders)


def balanced_quotas(question: Question, grid: Grid, start: Sequence[int]) -> tuple[int, ...]:
    """Integer quotas of the same sum that make the slowest replica fastest, by the estimated speeds."""

    def seconds_of(d: int, quota: int) -> float:
        stages = tuple(stage for stage in grid[d] if stage)
        return question.cost.makespan(stages, quota, question.throughputs, "1f1b")

    return best_quotas(seconds_of, start)


def on_replicas(home: Layout, kept: Sequence[int], *, keeps_batch: bool = True) -> Operation:
    """The job on some of its replicas, which share the whole batch, or do no more than their own part of it."""
    if len(kept) == len(home.replicas):
        return operation_of(home)
    stages = tuple(home.replicas[d].stages for d in kept)
    if keeps_batch:
        return Operation(replicas=stages, quotas=even_parts(home.num_micro_batches, len(kept)))
    quotas = tuple(home.replicas[d].num_micro_batches for d in kept)
    return Operation(replicas=stages, quotas=quotas, batch_fraction=sum(quotas) / home.num_micro_batches)


def moved(question: Question, operation: Operation, *, more_seconds: float = 0.0, keeps_sums: bool = False) -> Answer:
    """The job goes on so, at what it costs to bring groups and state there."""
    pause = transition_seconds(question.cost.model, question.current, operation, question.costs)
    return Answer(operation=operation, pause_seconds=pause + more_seconds, keeps_sums=keeps_sums)


def rolled_back(question: Question, operation: Operation) -> Answer:
    """The job goes on so from its last checkpoint, unless that is how it runs."""
    if operation == question.current:
        return Answer(operation=operation)
    pause = rollback_seconds(question.at_seconds, question.costs)
    return Answer(operation=operation, pause_seconds=pause, reruns_iteration=False)
