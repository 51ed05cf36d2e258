"""How a job runs at a moment: more general than a layout, so that every published system can be said in it.

Beyond a layout: a stage that nobody in its replica works on, micro-batches whose stages other replicas execute,
schedules that split the backward or let stages step on their own, micro-batches of unequal size, an iteration that
does less than the whole batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routes import Route
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.simulator.fleet.operation.conditions import IDEAL, Conditions, Floats, replica_seconds
from evenkeel.simulator.fleet.operation.network import Borders, Discipline, Routes, period_seconds

PLAIN = Discipline()
Grid = tuple[tuple[Stage | None, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """How a job runs.

    Attributes:
        replicas: Stages of each replica; None where nobody is.
        quotas: Micro-batches that belong to each replica.
        scales: Size of each replica's micro-batches, 1 = as registered; empty = all 1.
        routes: ``routes[d][m][s]``: the replica that executes stage s of micro-batch m of replica d; empty = its own.
        discipline: Order in which stages take work; only used when it is not plain 1F1B or when there are routes.
        batch_fraction: Part of the registered global batch that one iteration does.
    """

    replicas: Grid
    quotas: tuple[int, ...]
    scales: tuple[float, ...] = ()
    routes: Routes = ()
    discipline: Discipline = PLAIN
    batch_fraction: float = 1.0

    @cached_property
    def ranks(self) -> frozenset[int]:
        """Ranks that work."""
        return frozenset(rank for replica in self.replicas for stage in replica if stage for rank in stage.ranks)

    @property
    def is_plain(self) -> bool:
        """True when it is a layout under 1F1B: every replica executes its own micro-batches."""
        return not self.routes and self.discipline == PLAIN and all(all(replica) for replica in self.replicas)


def operation_of(layout: Layout) -> Operation:
    """A layout, running."""
    return Operation(
        replicas=tuple(replica.stages for replica in layout.replicas),
        quotas=tuple(replica.num_micro_batches for replica in layout.replicas),
        routes=_executors(layout) if layout.routes else (),
    )


def _executors(layout: Layout) -> Routes:
    """Who executes each stage of each micro-batch of each replica."""
    paths = Paths(layout)
    return tuple(
        tuple(tuple(paths.host(m, s) for s in range(len(replica.stages))) for m in layout.micro_batches_of(d))
        for d, replica in enumerate(layout.replicas)
    )


def layout_of(operation: Operation, num_blocks: int) -> Layout:
    """The layout of an operation without holes; in the order of its own schedule, whatever the discipline."""
    routes = [
        Route(micro_batch=sum(operation.quotas[:d]) + m, stage=s, replica=executor)
        for d, of_replica in enumerate(operation.routes)
        for m, executors in enumerate(of_replica)
        for s, executor in enumerate(executors)
        if executor != d
    ]
    return Layout(
        routes=tuple(routes),
        routable=bool(routes),
        num_blocks=num_blocks,
        replicas=tuple(
            Replica(stages=tuple(stage for stage in stages if stage), num_micro_batches=quota)
            for stages, quota in zip(operation.replicas, operation.quotas, strict=True)
        ),
    )


def grid_seconds(
    cost: CostModel, grid: Grid, throughputs: Mapping[int, float], conditions: Conditions = IDEAL
) -> tuple[tuple[float, ...], ...]:
    """(forward, backward) seconds of each cell, flattened as ``[d][2 s]``, ``[d][2 s + 1]``; 0 where nobody is."""
    rows = []
    for replica in grid:
        row: list[float] = []
        for stage in replica:
            row += _stage_seconds(cost, stage, throughputs, conditions) if stage else (0.0, 0.0)
        rows.append(tuple(row))
    return tuple(rows)


def _stage_seconds(
    cost: CostModel, stage: Stage, throughputs: Mapping[int, float], conditions: Conditions
) -> tuple[float, float]:
    """(forward, backward) seconds of a micro-batch of a stage: a ring of shards is as slow as its slowest link."""
    forward, backward, _ = cost.parts(stage, throughputs, "1f1b")
    more = 0.5 * (conditions.group_factor(stage) - 1.0) * cost.exchange_seconds(stage)
    return forward + more, backward + more


def operation_seconds(
    cost: CostModel, operation: Operation, throughputs: Mapping[int, float], conditions: Conditions = IDEAL
) -> float:
    """Seconds per iteration of an operation.

    Args:
        cost: Cost model.
        operation: How the job runs.
        throughputs: Speed of each live device.
        conditions: Slow links and noise; a planner knows of none.

    Raises:
        ValueError: A rank that works is dead, or a stage is executed by nobody.
    """
    exchanged = cost.gradients.seconds(operation.replicas) * conditions.between_replicas(operation.replicas)
    return cost.total(_pipeline_seconds(cost, operation, throughputs, conditions), exchanged)


def _pipeline_seconds(
    cost: CostModel, operation: Operation, throughputs: Mapping[int, float], conditions: Conditions
) -> float:
    """Seconds of the slowest pipeline, up to its last backward."""
    if operation.is_plain:
        if not conditions.is_ideal:
            return _plain_seconds(cost, operation, throughputs, conditions)
        slowest = 0.0
        for d, stages in enumerate(operation.replicas):
            scale = operation.scales[d] if operation.scales else 1.0
            whole = tuple(stage for stage in stages if stage)
            slowest = max(slowest, scale * cost.makespan(whole, operation.quotas[d], throughputs, "1f1b"))
        return slowest
    return period_seconds(
        grid_seconds(cost, operation.replicas, throughputs, conditions),
        operation.quotas,
        operation.routes,
        operation.discipline,
        cost.workload.transfer_seconds,
        slow_borders(operation.replicas, conditions),
        conditions.noise,
        conditions.seed,
    )


def slow_borders(grid: Grid, conditions: Conditions) -> Borders:
    """Factors on transfers between cells of neighbouring stages, those above 1."""
    if not conditions.links:
        return ()
    found = []
    for s in range(len(grid[0]) - 1):
        for d, replica in enumerate(grid):
            for e, other in enumerate(grid):
                one, two = replica[s], other[s + 1]
                factor = conditions.border_factor(one, two) if one and two else 1.0
                if factor > 1.0:
                    found.append((d, s, e, factor))
    return tuple(found)


def _plain_seconds(
    cost: CostModel, operation: Operation, throughputs: Mapping[int, float], conditions: Conditions
) -> float:
    """Mean over sampled iterations of the slowest replica; each sample draws every operation anew."""
    slowest: Floats | float = 0.0
    rng = np.random.default_rng(conditions.seed)
    for d, stages in enumerate(operation.replicas):
        whole = [stage for stage in stages if stage]
        scale = operation.scales[d] if operation.scales else 1.0
        seconds = [_stage_seconds(cost, stage, throughputs, conditions) for stage in whole]
        base = cost.workload.transfer_seconds
        borders = [base * conditions.border_factor(one, two) for one, two in pairwise(whole)]
        quota = operation.quotas[d]
        if quota:
            taken = replica_seconds(seconds, quota, borders, noise=conditions.noise, rng=rng)
            slowest = np.maximum(slowest, scale * taken)
    return float(np.mean(slowest))
