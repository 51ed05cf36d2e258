"""Seconds of a 1F1B pipeline whose micro-batches are alike: what its programs would take, without writing them.

Step m runs, stage by stage, forward m and then backward ``m - (stages - 1 - s)``. That is each stage's own order, and
both inputs are there: the forward's from the stage before in this step, the backward's from the stage after in the step
before.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from services.scheduler.planning.pipeline_run import PipelineRun

_Seconds = tuple[tuple[float, float], ...]


class _Run(PipelineRun):
    """A 1F1B pipeline."""

    def __init__(self, stage_seconds: Sequence[tuple[float, float]], border_seconds: Sequence[float]) -> None:
        ups = (0.0, *border_seconds)
        super().__init__(len(stage_seconds), ups)
        # Of each stage: its number, forward, backward, transfer to the stage after it, transfer to the one before.
        self._numbered = [
            (s, forward, backward, down, up)
            for s, ((forward, backward), down, up) in enumerate(
                zip(stage_seconds, (*border_seconds, 0.0), ups, strict=True)
            )
        ]

    def _few(self, num_micro_batches: int) -> float:
        last = self._last
        clocks, gradients = self._state(num_micro_batches)
        for step in range(num_micro_batches, num_micro_batches + last):
            for s, _, backward, _, up in self._numbered[max(0, last - step) : num_micro_batches + last - step]:
                clock = max(clocks[s], gradients[s + 1]) + backward
                gradients[s] = clock + up
                clocks[s] = clock
        return max(clocks)

    def _rest(self) -> tuple[list[float], list[float]]:
        last = self._last
        from_clocks, from_gradients = [0.0] * (last + 1), [-math.inf] * (last + 2)
        for step in range(last - 1, -1, -1):
            for s, _, backward, _, up in self._numbered[last - step - 1 :: -1]:
                rest = max(from_clocks[s], from_gradients[s] + up) + backward
                from_gradients[s] = -math.inf
                from_clocks[s] = rest
                from_gradients[s + 1] = max(from_gradients[s + 1], rest)
        return from_clocks, from_gradients

    def _fill(self, step: int, clocks: list[float], gradients: list[float]) -> None:
        last, arrival = self._last, -math.inf
        for s, forward, backward, down, up in self._numbered:
            clock = clocks[s]
            clock = (arrival if arrival > clock else clock) + forward  # noqa: FURB136
            arrival = clock + down
            if step + s >= last:
                gradient = gradients[s + 1]
                clock = (gradient if gradient > clock else clock) + backward  # noqa: FURB136
                gradients[s] = clock + up
            clocks[s] = clock

    def _steady(self, clocks: list[float], gradients: list[float]) -> None:
        arrival = -math.inf
        for s, forward, backward, down, up in self._numbered:
            clock = clocks[s]
            clock = (arrival if arrival > clock else clock) + forward  # noqa: FURB136
            arrival = clock + down
            gradient = gradients[s + 1]
            clock = (gradient if gradient > clock else clock) + backward  # noqa: FURB136
            gradients[s] = clock + up
            clocks[s] = clock


@lru_cache(maxsize=1024)
def _run_of(stage_seconds: _Seconds, transfer_seconds: float | tuple[float, ...]) -> _Run:
    if isinstance(transfer_seconds, float):
        transfer_seconds = (transfer_seconds,) * (len(stage_seconds) - 1)
    return _Run(stage_seconds, transfer_seconds)


def one_f_one_b_makespan(
    stage_seconds: _Seconds, num_micro_batches: int, transfer_seconds: float | tuple[float, ...]
) -> float:
    """Seconds up to the last backward.

    Args:
        stage_seconds: (forward, backward) seconds per micro-batch of each stage.
        num_micro_batches: At least 1.
        transfer_seconds: Per transfer between stages, the same for all or one number for each border.
    """
    return _run_of(stage_seconds, transfer_seconds).seconds(num_micro_batches)


def forget_runs() -> None:
    """Keep nothing of earlier questions: for measurements of plan time."""
    _run_of.cache_clear()
