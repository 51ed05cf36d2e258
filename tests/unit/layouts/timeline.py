"""When each stage works and waits in an iteration of any layout, by the one executor of programs."""

from collections.abc import Callable
from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.execution import PlaceTimes, cell_receiver, times
from evenkeel.layouts.programs.instructions import Instruction
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routed_stages import routed_stages
from evenkeel.layouts.programs.schedules import program_of


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
