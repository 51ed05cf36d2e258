"""Seconds of pipelines with a split backward and micro-batches that are alike.

ZB-H1 has a short way, as 1F1B has (:mod:`services.scheduler.planning.one_f_one_b`). Step t runs, stage by stage,
forward t, the input's part of micro-batch ``t - (stages - 1 - s)`` and the weights' part of micro-batch
``t - (stages - 1)``: each stage's own order, and whatever they wait for is there. What weights' parts are left then
wait for nobody. For equal stages with w <= f and w <= b, and at least as many micro-batches as stages, that is
m (f + b + w) + (p - 1) (f + b - w): the closed form of arXiv 2401.10241.
"""

import math
from functools import lru_cache

from layouts.instructions import Instruction, Op
from layouts.schedules import SCHEDULES
from layouts.timeline import run_programs
from services.scheduler.planning.pipeline_run import PipelineRun

_PLACES = {Op.FORWARD: 0, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2}
_Parts = tuple[float, float, float]


class _Run(PipelineRun):
    """A ZB-H1 pipeline."""

    def __init__(self, stage_seconds: tuple[_Parts, ...], transfer_seconds: float) -> None:
        super().__init__(len(stage_seconds), [transfer_seconds - weight for _, _, weight in stage_seconds])
        self._numbered = [(s, *parts) for s, parts in enumerate(stage_seconds)]
        self._transfer = transfer_seconds

    def _few(self, num_micro_batches: int) -> float:
        clocks, gradients = [0.0] * (self._last + 1), [0.0] * (self._last + 2)
        for step in range(num_micro_batches + self._last):
            arrival = 0.0
            for s, forward, backward, weight in self._numbered:
                if step < num_micro_batches:
                    clocks[s] = max(clocks[s], arrival) + forward
                    arrival = clocks[s] + self._transfer
                if self._last - s <= step < num_micro_batches + self._last - s:
                    clocks[s] = max(clocks[s], gradients[s + 1]) + backward
                    gradients[s] = clocks[s] + self._transfer
                    clocks[s] += weight * (step >= self._last)
        return max([clocks[s] + min(s, num_micro_batches) * weight for s, _, _, weight in self._numbered])

    def _fill(self, step: int, clocks: list[float], gradients: list[float]) -> None:
        transfer, arrival = self._transfer, -math.inf
        for s, forward, backward, _ in self._numbered:
            clock = clocks[s]
            clock = (arrival if arrival > clock else clock) + forward  # noqa: FURB136 - twice as fast as max()
            arrival = clock + transfer
            if step + s >= self._last:
                clock = max(clock, gradients[s + 1]) + backward
                gradients[s] = clock + transfer
            clocks[s] = clock

    def _steady(self, clocks: list[float], gradients: list[float]) -> None:
        transfer, arrival = self._transfer, -math.inf
        for s, forward, backward, weight in self._numbered:
            clock = clocks[s]
            clock = (arrival if arrival > clock else clock) + forward  # noqa: FURB136 - twice as fast as max()
            arrival = clock + transfer
            gradient = gradients[s + 1]
            clock = (gradient if gradient > clock else clock) + backward  # noqa: FURB136
            gradients[s] = clock + transfer
            clocks[s] = clock + weight

    def _rest(self) -> tuple[list[float], list[float]]:
        from_clocks = [s * weight for s, _, _, weight in self._numbered]
        from_gradients = [-math.inf] * (self._last + 2)
        for step in range(self._last - 1, -1, -1):
            for s, _, backward, weight in self._numbered[self._last - step - 1 :: -1]:
                rest = max(from_clocks[s] + weight, from_gradients[s] + self._transfer) + backward
                from_clocks[s], from_gradients[s] = rest, -math.inf
                from_gradients[s + 1] = max(from_gradients[s + 1], rest)
        return from_clocks, from_gradients


@lru_cache(maxsize=1024)
def _run_of(stage_seconds: tuple[_Parts, ...], transfer_seconds: float) -> _Run:
    return _Run(stage_seconds, transfer_seconds)


@lru_cache(maxsize=65536)
def split_makespan(
    stage_seconds: tuple[_Parts, ...], num_micro_batches: int, transfer_seconds: float, schedule: str
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
        return _run_of(stage_seconds, transfer_seconds).seconds(num_micro_batches)
    write = SCHEDULES[schedule]
    programs = [write(s, len(stage_seconds), range(num_micro_batches)) for s in range(len(stage_seconds))]

    def seconds_of(stage: int, instruction: Instruction) -> float:
        return stage_seconds[stage][_PLACES[instruction.op]]

    return max(stage.end_seconds for stage in run_programs(programs, seconds_of, transfer_seconds))


def forget_split_runs() -> None:
    """Keep nothing of earlier questions: for measurements of plan time."""
    _run_of.cache_clear()
    split_makespan.cache_clear()
