"""The operations of a cut and placed model: for orders by hand, for the solver, and as the plan that a schedule is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Turn
from evenkeel.pipelines.case import Case
from evenkeel.pipelines.costs import stage_costs
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.search.tables import Stages, durations_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Operations of one partition and placement, numbered as in :mod:`evenkeel.pipelines.search.dispatching.dispatch`.

    Attributes:
        partition: Layers of each stage.
        placement: Device of each stage.
        stages: The same as arrays, with the stages' times.
        durations: Of each operation.
        device: Of each operation.
    """

    partition: tuple[int, ...]
    placement: tuple[int, ...]
    stages: Stages
    durations: list[float]
    device: list[int]

    @property
    def is_split(self) -> bool:
        """Whether W are operations of their own; else B is the whole backward and there is no W."""
        return len(self.stages.times) == 3

    @property
    def block(self) -> int:
        """Number of operations of one kind."""
        return len(self.partition) * self.stages.micro_batches

    def successors(self, op: int) -> tuple[int, ...]:
        """What needs an operation."""
        num_stages, block = len(self.partition), self.block
        stage = op % num_stages
        if op < block:
            return (op + 1,) if stage < num_stages - 1 else (op + block,)
        if op >= 2 * block:
            return ()
        after = (op - 1,) if stage else ()
        return (*after, op + block) if self.is_split else after


def network_of(case: Case, partition: Sequence[int], placement: Sequence[int]) -> Network:
    """The network of a partition and placement.

    Raises:
        ValueError: See :func:`evenkeel.pipelines.costs.stage_costs`.
    """
    costs = stage_costs(case, partition, placement)
    kinds = list(zip(*map(case.passes, costs), strict=True))
    stages = Stages(
        device=np.array(placement),
        times=np.array(kinds[: case.num_kinds], dtype=np.float64),
        activation=np.array([cost.activation for cost in costs], dtype=np.float64),
        num_devices=case.devices,
        micro_batches=case.micro_batches,
        communication=float(case.communication),
    )
    durations = durations_of(stages).tolist()
    device = list(placement) * (len(durations) // len(placement))
    return Network(
        partition=tuple(partition), placement=tuple(placement), stages=stages, durations=durations, device=device
    )


def plan_of(network: Network, starts: Sequence[float]) -> Plan:
    """The plan in which each device works in the order of the starts, micro-batches of a stage in turn.

    Micro-batches are alike, so the k-th F of a stage may be called that of micro-batch k, and so for B and W: what
    each waits for has then been done at least as often. Operations without length may start together: they are
    ordered as one needs the other.
    """
    num_stages, block = len(network.partition), network.block
    starts = list(starts)
    for kind in range(0, len(starts), block):
        for stage in range(num_stages):
            of_stage = slice(kind + stage, kind + block, num_stages)
            starts[of_stage] = sorted(starts[of_stage])
    backward = Op.BACKWARD_INPUT if network.is_split else Op.BACKWARD
    kinds = (Op.FORWARD, backward, Op.BACKWARD_WEIGHT)
    orders: list[list[Turn]] = [[] for _ in range(network.stages.num_devices)]

    def moment(op: int) -> tuple[float, float, int, int, int]:
        kind, rest = divmod(op, block)
        micro_batch, stage = divmod(rest, num_stages)
        # Within a micro-batch F go up the stages and the backward comes down.
        return starts[op], starts[op] + network.durations[op], micro_batch, kind, -stage if kind else stage

    for op in sorted(range(len(network.durations)), key=moment):
        kind, rest = divmod(op, block)
        micro_batch, stage = divmod(rest, num_stages)
        orders[network.device[op]].append(Turn(kinds[kind], micro_batch, stage))
    return Plan(partition=network.partition, placement=network.placement, orders=tuple(map(tuple, orders)))


def starts_of(network: Network, plan: Plan, starts: Sequence[Sequence[float]]) -> list[float]:
    """Starts by operation from starts by device, as an evaluation gives them.

    For plans of a network; a backward in one block counts as B and then W.
    """
    num_stages, block = len(network.partition), network.block
    kinds = {Op.FORWARD: 0, Op.BACKWARD_INPUT: block, Op.BACKWARD: block, Op.BACKWARD_WEIGHT: 2 * block}
    result = [0.0] * len(network.durations)
    for order, times in zip(plan.orders, starts, strict=True):
        for (op, place, stage), time in zip(order, times, strict=True):
            backward = place * num_stages + stage + block
            result[kinds[op] - block + backward] = time
            if op is Op.BACKWARD and network.is_split:
                result[block + backward] = time + network.durations[backward]
    return result
