"""When each stage works and waits in an iteration of a layout, by :mod:`evenkeel.layouts.programs.execution`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.execution import PlaceTimes, cell_receiver, times
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.schedules import program_of, routed_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One iteration of a layout.

    Attributes:
        iteration_seconds: When the last stage of the last replica is done.
        stages: Times of each stage, ``stages[replica][stage]``; of a replica with orders, of each cell.
    """

    iteration_seconds: float
    stages: tuple[tuple[PlaceTimes, ...], ...]

    def bubble_fraction(self, replica: int, stage: int) -> float:
        """The part of the iteration in which a stage does not compute, 0 to 1."""
        if self.iteration_seconds <= 0.0:
            return 0.0
        return 1.0 - self.stages[replica][stage].busy_seconds / self.iteration_seconds


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

            stages.append(times(programs, seconds, transfer_seconds, receiver_of))
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
) -> list[tuple[PlaceTimes, ...]]:
    """Timelines of the stages of replicas that work together, and with no other one.

    Args:
        layout: Layout with routes.
        paths: Its paths.
        replicas: The replicas; whoever hosts a micro-batch of one of them is one of them too.
        seconds_of: Duration of a computing instruction of (replica, stage).
        transfer_seconds: From a send to the arrival at the next stage.
        later: As in :func:`evenkeel.layouts.programs.execution.times`.

    Raises:
        ValueError: Unknown schedule.
    """
    places = [(d, s) for d in replicas for s in range(len(layout.replicas[d].stages))]
    index = {place: number for number, place in enumerate(places)}
    programs = [routed_program(layout, paths, d, s) for d, s in places]

    def receiver_of(number: int, instruction: Instruction) -> int:
        next_stage = places[number][1] + (1 if instruction.op is Op.SEND_ACTIVATION else -1)
        return index[paths.host(instruction.micro_batch, next_stage), next_stage]

    found = times(programs, lambda n, i: seconds_of(*places[n], i), transfer_seconds, receiver_of, later)
    timelines = iter(found)
    return [tuple(next(timelines) for _ in layout.replicas[d].stages) for d in replicas]
