"""Replicas whose ranks hold several stages each: what an iteration takes, and the plain pipelines of the same ranks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.programs.execution import cell_receiver, times
from evenkeel.layouts.programs.instructions import Instruction, Op, Program
from evenkeel.layouts.programs.orders import Order, order_programs

Parts = Sequence[Sequence[float]]
"""(forward, backward of the input, backward of the weights) seconds of one micro-batch of each stage."""


def plain_replica(replica: Replica) -> Replica:
    """The replica with one stage a cell, of as many blocks as the cell has; itself when it has no orders."""
    if not replica.orders:
        return replica
    stages, first = [], 0
    for cell in replica.cells:
        like = replica.stages[cell[0]]
        stop = first + sum(replica.stages[s].num_blocks for s in cell)
        stages.append(Stage(first_block=first, stop_block=stop, ranks=like.ranks, shares=like.shares))
        first = stop
    return Replica(stages=tuple(stages), num_micro_batches=replica.num_micro_batches)


def has_orders(layout: Layout) -> bool:
    """Whether some replica works in an order of its own."""
    return any(replica.orders for replica in layout.replicas)


def bare(layout: Layout) -> Layout:
    """The layout without routes, with one stage a rank: what most levers begin with. Itself when it is one already."""
    if layout.routes:
        layout = replace(layout, routes=())
    if has_orders(layout):
        layout = replace(layout, replicas=tuple(map(plain_replica, layout.replicas)))
    return layout


@lru_cache(maxsize=64)
def programs_of(
    orders: tuple[Order, ...], cells: tuple[tuple[int, ...], ...], num_micro_batches: int
) -> tuple[Program, ...]:
    """Programs of a replica's cells; its micro-batches are counted from 0."""
    return order_programs(orders, cells, range(num_micro_batches))


def ordered_makespan(replica: Replica, parts: Parts, transfer_seconds: float, factors: Sequence[float] = ()) -> float:
    """Seconds of an iteration of a replica with orders up to its last backward: the longest path of its programs.

    Args:
        replica: It.
        parts: Of each stage.
        transfer_seconds: Per transfer between cells.
        factors: On transfers over each border between stages; none = 1 everywhere.
    """

    def seconds_of(cell: int, instruction: Instruction) -> float:
        forward, of_input, of_weights = parts[instruction.stage]
        if instruction.op is Op.FORWARD:
            return forward
        if instruction.op is Op.BACKWARD:
            return of_input + of_weights
        return of_input if instruction.op is Op.BACKWARD_INPUT else of_weights

    def delay_of(_: int, instruction: Instruction) -> float:
        border = instruction.stage - (instruction.op is Op.SEND_GRADIENT)
        return transfer_seconds * factors[border]

    delay: float | Callable[[int, Instruction], float] = delay_of if factors else transfer_seconds
    programs = programs_of(replica.orders, replica.cells, replica.num_micro_batches)
    return max(cell.end_seconds for cell in times(programs, seconds_of, delay, cell_receiver(replica.cells)))
