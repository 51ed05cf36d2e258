"""When each stage works and waits in one iteration: the longest path through the stages' actual programs.

Each stage is a clock that runs its program in order. Computing advances the clock; a send costs nothing and puts the
data at the neighbour ``transfer_seconds`` later; a receive moves the clock to the arrival. This is the longest path
over data dependencies and program order (as in ResiHP, arXiv 2605.06374), for any schedule, not only for those with a
closed form. Replicas meet only where a layout has routes, and at the end of the iteration: the gradient exchange is not
part of the timeline, and transfers do not share bandwidth.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenkeel.layouts.instructions import Instruction, Op, Program
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.paths import Paths
from evenkeel.layouts.schedules import program_of, routed_program

_COMPUTES = frozenset((Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimeline:
    """What one stage of one replica does in an iteration.

    Attributes:
        busy_seconds: Time it computes.
        end_seconds: When its last instruction ends, from the start of the iteration.
    """

    busy_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One iteration of a layout.

    Attributes:
        iteration_seconds: When the last stage of the last replica is done.
        stages: Timeline of each stage, ``stages[replica][stage]``; of a replica with orders, of each cell.
    """

    iteration_seconds: float
    stages: tuple[tuple[StageTimeline, ...], ...]

    def bubble_fraction(self, replica: int, stage: int) -> float:
        """The part of the iteration in which a stage does not compute, 0 to 1."""
        if self.iteration_seconds <= 0.0:
            return 0.0
        return 1.0 - self.stages[replica][stage].busy_seconds / self.iteration_seconds


def run_programs(
    programs: Sequence[Program],
    seconds_of: Callable[[int, Instruction], float],
    transfer_seconds: float | Callable[[Instruction], float] = 0.0,
    receiver_of: Callable[[int, Instruction], int] | None = None,
    later: Callable[[float, float], float] = max,
) -> tuple[StageTimeline, ...]:
    """Timeline of the stages of one replica, or of several that work together.

    Args:
        programs: Program of each stage, in pipeline order.
        seconds_of: Duration of a computing instruction of a stage, called once for each (stage, instruction).
        transfer_seconds: From a send to the arrival at the neighbour; of each send where borders differ.
        receiver_of: Place in ``programs`` of who receives what a send of a stage sends; None = its neighbour.
        later: The later of two moments. With ``numpy.maximum`` durations may be arrays: many iterations at once.

    Raises:
        ValueError: The programs cannot run to their end: some receive has no send that can ever happen.
    """
    num_stages = len(programs)
    clocks = [0.0] * num_stages
    busy = [0.0] * num_stages
    positions = [0] * num_stages
    arrivals: dict[tuple[int, bool, int, int], float] = {}
    ready = deque(range(num_stages))
    while ready:
        stage = ready.popleft()
        program, clock, position = programs[stage], clocks[stage], positions[stage]
        for index in range(position, len(program)):
            instruction = program[index]
            op = instruction.op
            if op is Op.RECEIVE_ACTIVATION or op is Op.RECEIVE_GRADIENT:
                received = stage, op is Op.RECEIVE_ACTIVATION, instruction.micro_batch, instruction.stage
                arrival = arrivals.get(received)
                if arrival is None:
                    position = index
                    break
                clock = later(clock, arrival)
            elif op is Op.SEND_ACTIVATION:
                receiver = stage + 1 if receiver_of is None else receiver_of(stage, instruction)
                delay = transfer_seconds(instruction) if callable(transfer_seconds) else transfer_seconds
                arrivals[receiver, True, instruction.micro_batch, instruction.stage + 1] = clock + delay
                ready.append(receiver)
            elif op is Op.SEND_GRADIENT:
                receiver = stage - 1 if receiver_of is None else receiver_of(stage, instruction)
                delay = transfer_seconds(instruction) if callable(transfer_seconds) else transfer_seconds
                arrivals[receiver, False, instruction.micro_batch, instruction.stage - 1] = clock + delay
                ready.append(receiver)
            elif op in _COMPUTES:
                seconds = seconds_of(stage, instruction)
                # No addition in place: a moment that is an array is also when something that was sent arrives.
                clock = clock + seconds
                busy[stage] = busy[stage] + seconds
        else:
            position = len(program)
        clocks[stage], positions[stage] = clock, position
    for stage, position in enumerate(positions):
        if position < len(programs[stage]):
            blocked = programs[stage][position]
            raise ValueError(
                f"stage {stage} of {num_stages} waits for ever at instruction {position} "
                f"({blocked.op}, micro-batch {blocked.micro_batch}): nobody sends it; fix the schedule"
            )
    return tuple(
        StageTimeline(busy_seconds=seconds, end_seconds=end) for seconds, end in zip(busy, clocks, strict=True)
    )


def cell_receiver(cells: Sequence[Sequence[int]]) -> Callable[[int, Instruction], int]:
    """Who receives what a cell sends, for :func:`run_programs` over the programs of cells.

    Args:
        cells: Stages of each cell.
    """
    home = {stage: cell for cell, stages in enumerate(cells) for stage in stages}
    return lambda cell, instruction: home[instruction.stage + (1 if instruction.op is Op.SEND_ACTIVATION else -1)]


def timeline_of(
    layout: Layout, seconds_of: Callable[[int, int, Instruction], float], transfer_seconds: float = 0.0
) -> Timeline:
    """Timeline of one iteration of a layout.

    Args:
        layout: The layout; its schedule gives the programs.
        seconds_of: Duration of a computing instruction of (replica, stage).
        transfer_seconds: From a send to the arrival at the neighbour.

    Raises:
        ValueError: Unknown schedule, or a schedule that cannot run to its end.
    """
    if layout.routes:
        everybody = range(len(layout.replicas))
        stages = routed_stages(layout, Paths(layout), everybody, seconds_of, transfer_seconds)
    else:
        stages = []
        for d, replica in enumerate(layout.replicas):
            programs = [program_of(layout, d, cell[0]) for cell in replica.cells]
            receiver_of = cell_receiver(replica.cells)

            def seconds(cell: int, instruction: Instruction, d: int = d) -> float:
                return seconds_of(d, instruction.stage, instruction)

            stages.append(run_programs(programs, seconds, transfer_seconds, receiver_of))
    return Timeline(
        iteration_seconds=max(stage.end_seconds for replica in stages for stage in replica), stages=tuple(stages)
    )


def routed_stages(
    layout: Layout,
    paths: Paths,
    replicas: Sequence[int],
    seconds_of: Callable[[int, int, Instruction], float],
    transfer_seconds: float = 0.0,
    later: Callable[[float, float], float] = max,
) -> list[tuple[StageTimeline, ...]]:
    """Timelines of the stages of replicas that work together, and with no other one.

    Args:
        layout: Layout with routes.
        paths: Its paths.
        replicas: The replicas; whoever hosts a micro-batch of one of them is one of them too.
        seconds_of: Duration of a computing instruction of (replica, stage).
        transfer_seconds: From a send to the arrival at the next stage.
        later: As in :func:`run_programs`.

    Raises:
        ValueError: Unknown schedule.
    """
    places = [(d, s) for d in replicas for s in range(len(layout.replicas[d].stages))]
    index = {place: number for number, place in enumerate(places)}
    programs = [routed_program(layout, paths, d, s) for d, s in places]

    def receiver_of(number: int, instruction: Instruction) -> int:
        next_stage = places[number][1] + (1 if instruction.op is Op.SEND_ACTIVATION else -1)
        return index[paths.host(instruction.micro_batch, next_stage), next_stage]

    found = run_programs(programs, lambda n, i: seconds_of(*places[n], i), transfer_seconds, receiver_of, later)
    timelines = iter(found)
    return [tuple(next(timelines) for _ in layout.replicas[d].stages) for d in replicas]
