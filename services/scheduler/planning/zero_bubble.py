"""Seconds of pipelines with a split backward and micro-batches that are alike."""

from collections.abc import Sequence
from functools import lru_cache

from layouts.instructions import Instruction, Op
from layouts.schedules import SCHEDULES
from layouts.timeline import run_programs

_Parts = tuple[float, float, float]
_PLACES = {Op.FORWARD: 0, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2}


@lru_cache(maxsize=65536)
def split_makespan(
    stage_seconds: tuple[_Parts, ...],
    num_micro_batches: int,
    transfer_seconds: float,
    schedule: str,
) -> float:
    """Seconds of one replica's iteration up to its last backward.

    Args:
        stage_seconds: (forward, backward of the input, backward of the weights) seconds of each stage.
        num_micro_batches: The replica's quota.
        transfer_seconds: Per transfer between stages.
        schedule: Name of the schedule.
    """
    if num_micro_batches == 0:
        return 0.0
    if schedule == "zb-h1":
        return zb_h1_makespan(stage_seconds, num_micro_batches, transfer_seconds)
    write = SCHEDULES[schedule]
    programs = [write(s, len(stage_seconds), range(num_micro_batches)) for s in range(len(stage_seconds))]

    def seconds_of(stage: int, instruction: Instruction) -> float:
        return stage_seconds[stage][_PLACES[instruction.op]]

    return max(stage.end_seconds for stage in run_programs(programs, seconds_of, transfer_seconds))


def zb_h1_makespan(stage_seconds: Sequence[_Parts], num_micro_batches: int, transfer_seconds: float) -> float:
    """Seconds of a ZB-H1 pipeline: what its programs would take, without writing them.

    Step t runs, stage by stage, forward t, the input's part of micro-batch ``t - (stages - 1 - s)`` and the weights'
    part of micro-batch ``t - (stages - 1)``: each stage's own order, and whatever they wait for is there, as in 1F1B.
    What weights' parts are left then wait for nobody. For equal stages with w <= f and w <= b, and at least as many
    micro-batches as stages, that is m (f + b + w) + (p - 1) (f + b - w): the closed form of arXiv 2401.10241.

    Args:
        stage_seconds: (forward, backward of the input, backward of the weights) seconds of each stage.
        num_micro_batches: The replica's quota.
        transfer_seconds: Per transfer between stages.
    """
    last = len(stage_seconds) - 1
    clocks = [0.0] * (last + 1)
    gradients = [0.0] * (last + 2)
    numbered = [(s, *seconds) for s, seconds in enumerate(stage_seconds)]
    for step in range(num_micro_batches + last):
        arrival = 0.0
        for s, forward, backward, weight in numbered:
            clock = clocks[s]
            if step < num_micro_batches:
                clock = (arrival if arrival > clock else clock) + forward  # noqa: FURB136 - twice as fast as max()
                arrival = clock + transfer_seconds
            if last - s <= step < num_micro_batches + last - s:
                gradient = gradients[s + 1]
                clock = (gradient if gradient > clock else clock) + backward  # noqa: FURB136
                gradients[s] = clock + transfer_seconds
                if step >= last:
                    clock += weight
            clocks[s] = clock
    return max([clocks[s] + min(s, num_micro_batches) * weight for s, _, _, weight in numbered])
