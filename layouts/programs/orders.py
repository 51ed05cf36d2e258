"""What ranks that hold several stages of a replica compute, in order; transfers between stages follow from it.

Ranks that hold the same stages are a *cell*. Each cell of a replica has an order: the passes of all its stages over all
the replica's micro-batches, one after the other. Any order will do in which no pass waits for one that comes later, so
interleaved schedules, wave-like placements and what ``evenkeel schedule`` finds are all told in this one way.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from evenkeel.layouts.programs.execution import StuckError, cell_receiver, walk
from evenkeel.layouts.programs.instructions import Instruction, Op, Program


class Turn(NamedTuple):
    """One pass of a micro-batch through a stage.

    Attributes:
        op: FORWARD, BACKWARD, BACKWARD_INPUT or BACKWARD_WEIGHT.
        place: Which of the replica's micro-batches, from 0 to its quota.
        stage: Stage.
    """

    op: Op
    place: int
    stage: int


Order = tuple[Turn, ...]
"""What a cell computes in an iteration."""

LETTERS = {"F": Op.FORWARD, "BW": Op.BACKWARD, "B": Op.BACKWARD_INPUT, "W": Op.BACKWARD_WEIGHT}
"""How passes are written in documents, as in the plans of ``evenkeel schedule``."""

_LETTER_OF = {op: letter for letter, op in LETTERS.items()}
_BACKWARD = {Op.BACKWARD, Op.BACKWARD_INPUT}
_PASSES = ({Op.FORWARD, Op.BACKWARD}, {Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT})


def cells_of(ranks_of_stages: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Stages of each cell, ascending; cells by their first stage.

    >>> cells_of([(0,), (1,), (0,), (1,)])
    ((0, 2), (1, 3))
    """
    cells: dict[tuple[int, ...], list[int]] = {}
    for stage, ranks in enumerate(ranks_of_stages):
        cells.setdefault(ranks, []).append(stage)
    return tuple(tuple(stages) for stages in cells.values())


def orders_to_lists(orders: Sequence[Order]) -> list[list[list[str | int]]]:
    """Orders as lists of ``[letter, micro-batch, stage]``."""
    return [[[_LETTER_OF[op], place, stage] for op, place, stage in order] for order in orders]


def orders_from_lists(lists: Sequence[Sequence[Sequence[Any]]]) -> tuple[Order, ...]:
    """The inverse of :func:`orders_to_lists`.

    Raises:
        ValueError: A pass is none of ``F``, ``B``, ``W`` and ``BW``, or has something else than two numbers besides.
    """
    try:
        turns = [[Turn(LETTERS[letter], int(place), int(stage)) for letter, place, stage in each] for each in lists]
        return tuple([tuple(each) for each in turns])
    except KeyError as error:
        raise ValueError(f"an order has a pass {error}; known: {', '.join(LETTERS)}") from error


@lru_cache(maxsize=256)  # replicas that are alike have the same orders
def flaw_in(orders: tuple[Order, ...], cells: tuple[tuple[int, ...], ...], num_micro_batches: int) -> str:
    """What is wrong with the orders of a replica; empty when they are complete and none waits for ever.

    Args:
        orders: Of each cell.
        cells: Stages of each cell.
        num_micro_batches: The replica's quota.
    """
    if flaw := gap_in(orders, cells, num_micro_batches):
        return flaw
    try:
        steps = walk(checked_programs(orders, cells, range(num_micro_batches)), cell_receiver(cells))
        deque(steps, maxlen=0)
    except StuckError as error:
        one = error.instruction
        return f"{one.op} of micro-batch {one.micro_batch} of stage {one.stage} waits for ever"
    return ""


def gap_in(orders: Sequence[Order], cells: Sequence[Sequence[int]], num_micro_batches: int) -> str:
    """Which pass of a replica is not there once; empty when all are. Arguments as in :func:`flaw_in`."""
    if len(orders) != len(cells):
        return f"{len(orders)} orders for {len(cells)} cells {tuple(cells)}: each cell needs one"
    for cell, (order, stages) in enumerate(zip(orders, cells, strict=True)):
        found: dict[tuple[int, int], list[Op]] = {}
        for turn in order:
            found.setdefault((turn.place, turn.stage), []).append(turn.op)
        due = {(place, stage) for place in range(num_micro_batches) for stage in stages}
        if found.keys() != due:
            place, stage = min(found.keys() ^ due)
            what = "lacks" if (place, stage) in due else "has, against the layout,"
            return f"the order of cell {cell} {what} micro-batch {place} of stage {stage}"
        for (place, stage), ops in found.items():
            if set(ops) not in _PASSES or len(ops) != len(set(ops)):
                return (
                    f"the order of cell {cell} has {', '.join(ops)} for micro-batch {place} of stage {stage}: "
                    "a forward, and one backward whole or in its two parts"
                )
    return ""


def checked_programs(
    orders: Sequence[Order], cells: Sequence[Sequence[int]], micro_batches: Sequence[int]
) -> tuple[Program, ...]:
    """:func:`order_programs` of complete orders that nobody has looked at yet.

    Raises:
        StuckError: A cell has a pass before another one of its own that it needs.
    """
    home = {stage: cell for cell, stages in enumerate(cells) for stage in stages}
    for cell, order in enumerate(orders):
        done: set[tuple[bool, int, int]] = set()  # forward or the input's backward, micro-batch, stage
        for position, turn in enumerate(order):
            op, place, stage = turn
            if any(home.get(each) == cell and (ahead, place, each) not in done for ahead, each in _needs(turn)):
                raise StuckError(cell, len(orders), position, Instruction(op, micro_batches[place], stage))
            if op is not Op.BACKWARD_WEIGHT:
                done.add((op is Op.FORWARD, place, stage))
    return order_programs(orders, cells, micro_batches)


def _needs(turn: Turn) -> tuple[tuple[bool, int], ...]:
    """Forwards (true) and backwards of stages that come before a pass of the same micro-batch, where there are such."""
    if turn.op is Op.FORWARD:
        return ((True, turn.stage - 1),)
    if turn.op in _BACKWARD:
        return (True, turn.stage), (False, turn.stage + 1)
    return ((False, turn.stage),)


def order_programs(
    orders: Sequence[Order], cells: Sequence[Sequence[int]], micro_batches: Sequence[int]
) -> tuple[Program, ...]:
    """The program of each cell.

    A cell that needs a tensor takes what comes over the border in the order in which it is sent: borders are first in,
    first out. What a cell sends to itself is no transfer.

    Args:
        orders: Of each cell.
        cells: Stages of each cell.
        micro_batches: What the replica runs, in ascending places: all its quota, or less after a failure. Orders stay
            sound when places fall away, as passes of different micro-batches do not wait for each other.
    """
    kept = [tuple([turn for turn in order if turn.place < len(micro_batches)]) for order in orders]
    home = {stage: cell for cell, stages in enumerate(cells) for stage in stages}
    crossings = {s for s in range(len(home) - 1) if home[s] != home[s + 1]}
    forwards: dict[int, list[int]] = {s: [] for s in home}
    backwards: dict[int, list[int]] = {s: [] for s in home}
    for turn in (turn for order in kept for turn in order):
        if turn.op is not Op.BACKWARD_WEIGHT:
            (forwards if turn.op is Op.FORWARD else backwards)[turn.stage].append(turn.place)
    return tuple(_program(order, crossings, forwards, backwards, micro_batches) for order in kept)


def _program(
    order: Order,
    crossings: set[int],
    forwards: dict[int, list[int]],
    backwards: dict[int, list[int]],
    micro_batches: Sequence[int],
) -> Program:
    program: list[Instruction] = []
    received: dict[tuple[Op, int], tuple[set[int], Iterator[int]]] = {}

    def receive(op: Op, place: int, stage: int, sent: list[int]) -> None:
        have, coming = received.setdefault((op, stage), (set(), iter(sent)))
        while place not in have:
            arrived = next(coming)
            have.add(arrived)
            program.append(Instruction(op, micro_batches[arrived], stage))

    for op, place, stage in order:
        if op is Op.FORWARD and stage - 1 in crossings:
            receive(Op.RECEIVE_ACTIVATION, place, stage, forwards[stage - 1])
        elif op in _BACKWARD and stage in crossings:
            receive(Op.RECEIVE_GRADIENT, place, stage, backwards[stage + 1])
        program.append(Instruction(op, micro_batches[place], stage))
        if op is Op.FORWARD and stage in crossings:
            program.append(Instruction(Op.SEND_ACTIVATION, micro_batches[place], stage))
        elif op in _BACKWARD and stage - 1 in crossings:
            program.append(Instruction(Op.SEND_GRADIENT, micro_batches[place], stage))
    return (*program, Instruction(Op.REDUCE), Instruction(Op.STEP))
