"""The operations of a cut and placed model as a network of numbers, in the form that the dispatcher reads fast.

Operation ``kind * stages * micro_batches + micro_batch * stages + stage`` with kinds F = 0, B = 1, W = 2. Per
micro-batch the network is a chain (F up the stages, B down them) from which each W hangs; the reversed network is what
right-justification works on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipelines.case import Backward, Case
from pipelines.costs import stage_costs
from pipelines.plan import Operation, Pass, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Operations of one partition and placement.

    Attributes:
        partition: Layers of each stage.
        placement: Device of each stage.
        num_devices: Number of devices.
        num_micro_batches: Number of micro-batches.
        durations: Of each operation.
        device: Of each operation.
        successors: Of each operation: what needs it.
        predecessors: Of each operation: what it needs.
        activation: Memory of each stage.
        communication: Delay between devices.
        is_split: Whether W are operations of their own; else B is the whole backward and there is no W.
    """

    partition: tuple[int, ...]
    placement: tuple[int, ...]
    num_devices: int
    num_micro_batches: int
    durations: list[float]
    device: list[int]
    successors: list[tuple[int, ...]]
    predecessors: list[tuple[int, ...]]
    activation: tuple[float, ...]
    communication: float
    is_split: bool


def network_of(case: Case, partition: Sequence[int], placement: Sequence[int]) -> Network:
    """The network of a partition and placement.

    Raises:
        ValueError: See :func:`pipelines.costs.stage_costs`.
    """
    costs = stage_costs(case, partition, placement)
    num_stages, is_split = len(partition), case.backward is Backward.SPLIT
    forward = list(costs.forward)
    backward = list(costs.backward_input)
    weight = list(costs.backward_weight)
    if not is_split:
        backward = [b + w for b, w in zip(backward, weight, strict=True)]
    kinds = 3 if is_split else 2
    durations = forward * case.micro_batches + backward * case.micro_batches
    if is_split:
        durations += weight * case.micro_batches
    successors, predecessors = _edges(num_stages, case.micro_batches, is_split)
    return Network(
        partition=tuple(partition),
        placement=tuple(placement),
        num_devices=case.devices,
        num_micro_batches=case.micro_batches,
        durations=durations,
        device=list(placement) * (case.micro_batches * kinds),
        successors=successors,
        predecessors=predecessors,
        activation=costs.activation,
        communication=case.communication,
        is_split=is_split,
    )


@lru_cache(maxsize=256)
def _edges(
    num_stages: int, num_micro_batches: int, is_split: bool
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Successors and predecessors of each operation: they depend on the counts alone, and nobody changes them."""
    block = num_stages * num_micro_batches
    successors: list[tuple[int, ...]] = []
    for first in range(0, block, num_stages):
        successors += [(first + s + 1,) for s in range(num_stages - 1)]
        successors.append((block + first + num_stages - 1,))
    for first in range(0, block, num_stages):
        for s in range(num_stages):
            after: tuple[int, ...] = (block + first + s - 1,) if s else ()
            successors.append((*after, 2 * block + first + s) if is_split else after)
    if is_split:
        successors += [()] * block
    predecessors: list[list[int]] = [[] for _ in successors]
    for op, needing in enumerate(successors):
        for each in needing:
            predecessors[each].append(op)
    return successors, [tuple(before) for before in predecessors]


def plan_of(network: Network, starts: Sequence[float]) -> Plan:
    """The plan in which each device works in the order of the starts, micro-batches of a stage in turn.

    Micro-batches are alike, so the k-th F of a stage may be called that of micro-batch k, and so for B and W: what
    each waits for has then been done at least as often. Operations without length may start together: they are
    ordered as one needs the other.
    """
    num_stages = len(network.partition)
    block = num_stages * network.num_micro_batches
    starts = list(starts)
    for kind in range(0, len(starts), block):
        for stage in range(num_stages):
            of_stage = slice(kind + stage, kind + block, num_stages)
            starts[of_stage] = sorted(starts[of_stage])
    backward = Pass.BACKWARD_INPUT if network.is_split else Pass.BACKWARD
    kinds = (Pass.FORWARD, backward, Pass.BACKWARD_WEIGHT)
    orders: list[list[Operation]] = [[] for _ in range(network.num_devices)]

    def moment(op: int) -> tuple[float, float, int, int, int]:
        kind, rest = divmod(op, block)
        micro_batch, stage = divmod(rest, num_stages)
        # Within a micro-batch F go up the stages and the backward comes down.
        return starts[op], starts[op] + network.durations[op], micro_batch, kind, -stage if kind else stage

    for op in sorted(range(len(network.durations)), key=moment):
        kind, rest = divmod(op, block)
        micro_batch, stage = divmod(rest, num_stages)
        orders[network.device[op]].append(Operation(kinds[kind], micro_batch, stage))
    return Plan(partition=network.partition, placement=network.placement, orders=tuple(map(tuple, orders)))


def starts_of(network: Network, plan: Plan, starts: Sequence[Sequence[float]]) -> list[float]:
    """Starts by operation from starts by device, as an evaluation gives them; for plans of a network only."""
    num_stages = len(network.partition)
    block = num_stages * network.num_micro_batches
    kinds = {Pass.FORWARD: 0, Pass.BACKWARD_INPUT: block, Pass.BACKWARD: block, Pass.BACKWARD_WEIGHT: 2 * block}
    result = [0.0] * len(network.durations)
    for order, times in zip(plan.orders, starts, strict=True):
        for op, time in zip(order, times, strict=True):
            result[kinds[op.kind] + op.micro_batch * num_stages + op.stage] = time
    return result
