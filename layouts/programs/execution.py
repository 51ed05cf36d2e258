"""The one executor of programs: in which order instructions can run, and when each place works and waits.

A *place* runs its program in order: a stage of a replica, or a cell of stages that the same ranks hold. What it sends
is there for the receiver at once or later; a receive waits for it. :func:`walk` yields the instructions of all places
in an order in which that works, whatever they take, and whoever wants to know more of them (when they run, what ranks
measure) listens to it. :func:`times` is such a listener: one clock a place, the longest path over data dependencies and
program order (as in ResiHP, arXiv 2605.06374), for any schedule, not only for those with a closed form. Places meet
only in what they send one another: the gradient exchange is no part of it, and transfers do not share bandwidth.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evenkeel.layouts.programs.instructions import Instruction, Op, Program

COMPUTES = frozenset((Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT))
RECEIVES = frozenset((Op.RECEIVE_ACTIVATION, Op.RECEIVE_GRADIENT))
ARRIVES_AS: Mapping[Op, tuple[Op, int]] = {
    Op.SEND_ACTIVATION: (Op.RECEIVE_ACTIVATION, 1),
    Op.SEND_GRADIENT: (Op.RECEIVE_GRADIENT, -1),
}
"""What a send is at the other end, and how many stages further on."""

Receiver = Callable[[int, Instruction], int]
"""Place of who receives what a place sends."""


class StuckError(ValueError):
    """Programs cannot run to their end: some receive has no send that can ever happen.

    Attributes:
        place: A place that waits for ever.
        instruction: What it waits at.
    """

    def __init__(self, place: int, num_places: int, position: int, instruction: Instruction) -> None:
        super().__init__(
            f"stage {place} of {num_places} waits for ever at instruction {position} "
            f"({instruction.op}, micro-batch {instruction.micro_batch}): nobody sends it; fix the schedule"
        )
        self.place, self.instruction = place, instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTimes:
    """What one place does in an iteration.

    Attributes:
        busy_seconds: Time it computes.
        end_seconds: When its last instruction ends, from the start of the iteration.
    """

    busy_seconds: float
    end_seconds: float


def walk(programs: Sequence[Program], receiver_of: Receiver | None = None) -> Iterator[tuple[int, Instruction, int]]:
    """Every instruction of every program, in an order in which all can run: place, instruction, and the other's place.

    The other is who receives of a send, who sent of a receive, the place itself of anything else. The order hangs on
    the programs alone: places in turn, each as far as it gets.

    Args:
        programs: Of each place.
        receiver_of: Place of who receives what a place sends; None = its neighbour, one further on or back.

    Raises:
        StuckError: Some receive has no send that can ever happen.
    """
    positions = [0] * len(programs)
    sent: dict[tuple[int, Op, int, int], int] = {}
    is_done = False
    while not is_done:
        is_done, has_moved = True, False
        for place, program in enumerate(programs):
            position = positions[place]
            for index in range(position, len(program)):
                instruction = program[index]
                op, other = instruction.op, place
                if op in RECEIVES:
                    found = sent.pop((place, op, instruction.micro_batch, instruction.stage), None)
                    if found is None:
                        is_done = False
                        break
                    other = found
                elif op in ARRIVES_AS:
                    as_op, further = ARRIVES_AS[op]
                    other = place + further if receiver_of is None else receiver_of(place, instruction)
                    sent[other, as_op, instruction.micro_batch, instruction.stage + further] = place
                yield place, instruction, other
                position = index + 1
            has_moved = has_moved or position > positions[place]
            positions[place] = position
        if not (is_done or has_moved):
            place = next(p for p, program in enumerate(programs) if positions[p] < len(program))
            raise StuckError(place, len(programs), positions[place], programs[place][positions[place]])


def times(
    programs: Sequence[Program],
    seconds_of: Callable[[int, Instruction], float],
    transfer_seconds: float | Callable[[int, Instruction], float] = 0.0,
    receiver_of: Receiver | None = None,
    later: Callable[[float, float], float] = max,
) -> tuple[PlaceTimes, ...]:
    """When the places of programs that work together work and end.

    Computing advances the clock of a place; a send costs it nothing and is at the receiver ``transfer_seconds`` later;
    a receive moves the clock to the arrival.

    Args:
        programs: Of each place.
        seconds_of: Duration of a computing instruction of a place, called once for each.
        transfer_seconds: From a send to its arrival; of each place and send where they differ.
        receiver_of: As in :func:`walk`.
        later: The later of two moments. With ``numpy.maximum`` durations may be arrays: many iterations at once.

    Raises:
        StuckError: The programs cannot run to their end.
    """
    clocks, busy = [0.0] * len(programs), [0.0] * len(programs)
    arrivals: dict[tuple[int, Op, int, int], float] = {}
    for place, instruction, other in walk(programs, receiver_of):
        op = instruction.op
        if op in COMPUTES:
            seconds = seconds_of(place, instruction)
            # No addition in place: a moment that is an array is also when something that was sent arrives.
            clocks[place] = clocks[place] + seconds
            busy[place] = busy[place] + seconds
        elif op in RECEIVES:
            arrival = arrivals.pop((place, op, instruction.micro_batch, instruction.stage))
            clocks[place] = later(clocks[place], arrival)
        elif op in ARRIVES_AS:
            as_op, further = ARRIVES_AS[op]
            delay = transfer_seconds(place, instruction) if callable(transfer_seconds) else transfer_seconds
            arrivals[other, as_op, instruction.micro_batch, instruction.stage + further] = clocks[place] + delay
    return tuple(PlaceTimes(busy_seconds=seconds, end_seconds=end) for seconds, end in zip(busy, clocks, strict=True))


def cell_receiver(cells: Sequence[Sequence[int]]) -> Receiver:
    """Who receives what a cell sends, where places are the cells of a replica.

    Args:
        cells: Stages of each cell.
    """
    home = {stage: cell for cell, stages in enumerate(cells) for stage in stages}
    return lambda cell, instruction: home[instruction.stage + (1 if instruction.op is Op.SEND_ACTIVATION else -1)]
