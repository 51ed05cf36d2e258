"""Parts that several published systems share: their cells (one stage of one replica), and simple splits."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from evenkeel.layouts.layout import Layout, Stage
from evenkeel.planning.levers.balance.micro_batch_quota import best_quotas
from evenkeel.simulator.fleet.operation.operation import Grid
from evenkeel.simulator.fleet.strategy import Question


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


def even_borders(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    """Borders of stages of equal size; what is left goes to the first ones, as in the home layout."""
    return tuple(s * (num_blocks // num_stages) + min(s, num_blocks % num_stages) for s in range(num_stages + 1))


def balanced_quotas(question: Question, grid: Grid, start: Sequence[int]) -> tuple[int, ...]:
    """Integer quotas of the same sum that make the slowest replica fastest, by the estimated speeds."""

    def seconds_of(d: int, quota: int) -> float:
        stages = tuple(stage for stage in grid[d] if stage)
        return question.cost.makespan(stages, quota, question.throughputs, "1f1b")

    return best_quotas(seconds_of, start)


def spread(total: int, num_replicas: int) -> tuple[int, ...]:
    """Quotas as even as they can be; the first replicas have one more."""
    return tuple(total // num_replicas + (d < total % num_replicas) for d in range(num_replicas))
