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

_KEPT = 16
_PLACES = {Op.FORWARD: 0, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2}
_Parts = tuple[float, float, float]


class _Run:
    """One ZB-H1 pipeline: clocks after some steps, and when gradients of each stage arrive before it.

    Nothing before the drain hangs on the number of micro-batches, so quotas near each other share nearly all steps.
    """

    def __init__(self, stage_seconds: tuple[_Parts, ...], transfer_seconds: float) -> None:
        self._numbered = [(s, *parts) for s, parts in enumerate(stage_seconds)]
        self._last, self._transfer = len(stage_seconds) - 1, transfer_seconds
        self._states: dict[int, tuple[list[float], list[float]]] = {}
        self._rests: tuple[list[float], list[float]] | None = None

    def seconds(self, num_micro_batches: int) -> float:
        """When the last weights' part of the last stage to end is done."""
        if num_micro_batches < self._last:
            return self._few(num_micro_batches)
        clocks, gradients = self._state(num_micro_batches)
        if self._rests is None:
            self._rests = self._rest()
        from_clocks, from_gradients = self._rests
        ends = [at + rest for at, rest in zip(clocks, from_clocks, strict=True)]
        return max(ends + [at + rest for at, rest in zip(gradients, from_gradients, strict=True)])

    def _few(self, num_micro_batches: int) -> float:
        """The end when forwards stop before the last stage has begun: step by step."""
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

    def _state(self, num_steps: int) -> tuple[list[float], list[float]]:
        """Clocks and gradients after the steps in which there are forwards."""
        found = self._states.get(num_steps)
        if found is not None:
            return found
        begun = max([step for step in self._states if step < num_steps], default=0)
        start = self._states.get(begun) or ([0.0] * (self._last + 1), [0.0] * (self._last + 2))
        clocks, gradients = start[0].copy(), start[1].copy()
        for step in range(begun, num_steps):
            self._step(step, clocks, gradients)
            if num_steps - step <= _KEPT // 2:
                self._states[step + 1] = clocks.copy(), gradients.copy()
        while len(self._states) > _KEPT:
            del self._states[next(iter(self._states))]
        return clocks, gradients

    def _step(self, step: int, clocks: list[float], gradients: list[float]) -> None:
        transfer, arrival, full = self._transfer, 0.0, step >= self._last
        for s, forward, backward, weight in self._numbered:
            clock = clocks[s]
            clock = (arrival if arrival > clock else clock) + forward  # noqa: FURB136 - twice as fast as max()
            arrival = clock + transfer
            if full:
                gradient = gradients[s + 1]
                clock = (gradient if gradient > clock else clock) + backward  # noqa: FURB136
                gradients[s] = clock + transfer
                clock += weight
            elif step + s >= self._last:
                clock = max(clock, gradients[s + 1]) + backward
                gradients[s] = clock + transfer
            clocks[s] = clock

    def _rest(self) -> tuple[list[float], list[float]]:
        """From each clock and from each gradient, when the last forward is done, the longest way to the end."""
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
