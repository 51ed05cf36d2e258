"""When stages of replicas that run stages of one another work, by :mod:`evenkeel.layouts.programs.execution`."""

from collections.abc import Callable, Sequence

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.execution import PlaceTimes, times
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.schedules import routed_program


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
