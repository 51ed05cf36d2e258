"""Seconds of a 1F1B pipeline whose micro-batches are alike: what its programs would take, without writing them.

Step m runs, stage by stage, forward m and then backward ``m - (stages - 1 - s)``. That is each stage's own order, and
both inputs are there: the forward's from the stage before in this step, the backward's from the stage after in the step
before. How it starts and runs does not hang on the number of micro-batches, only when it ends: quotas near each other,
as the search for quotas asks for, share nearly all steps, and how a full pipeline drains is worked out once.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

_KEPT = 16
_Seconds = tuple[tuple[float, float], ...]


class _Run:
    """One pipeline on its way: clocks after the newest steps, and when gradients of each stage arrive before it."""

    def __init__(self, stage_seconds: Sequence[tuple[float, float]], border_seconds: Sequence[float]) -> None:
        # Of each stage: its number, forward, backward, transfer to the stage after it, transfer to the one before.
        self._numbered = [
            (s, forward, backward, down, up)
            for s, ((forward, backward), down, up) in enumerate(
                zip(stage_seconds, (*border_seconds, 0.0), (0.0, *border_seconds), strict=True)
            )
        ]
        self._from_clocks: list[float] = []
        self._from_gradients: list[float] = []
        self._states: OrderedDict[int, tuple[list[float], list[float]]] = OrderedDict()

    def seconds(self, num_micro_batches: int) -> float:
        """When the last backward of the last micro-batch ends."""
        last = len(self._numbered) - 1
        clocks, gradients = self._state(num_micro_batches)
        if num_micro_batches < last:
            return self._drained(num_micro_batches, clocks, gradients)
        if not self._from_clocks:
            self._from_clocks, self._from_gradients = self._rest()
        ends = [at + rest for at, rest in zip(clocks, self._from_clocks, strict=True)]
        return max(ends + [at + rest for at, rest in zip(gradients, self._from_gradients, strict=True)])

    def _drained(self, num_micro_batches: int, clocks: list[float], gradients: list[float]) -> float:
        """The end when forwards stop before the last stage has begun."""
        last = len(self._numbered) - 1
        for step in range(num_micro_batches, num_micro_batches + last):
            for s, _, backward, _, up in self._numbered[max(0, last - step) : num_micro_batches + last - step]:
                clock = max(clocks[s], gradients[s + 1]) + backward
                gradients[s] = clock + up
                clocks[s] = clock
        return max(clocks)

    def _rest(self) -> tuple[list[float], list[float]]:
        """From each clock and from each gradient, when the last forward is done, the longest way to the end.

        Once the pipeline is full it drains in the same way whatever has run before: from the end backwards.
        """
        last = len(self._numbered) - 1
        from_clocks, from_gradients = [0.0] * (last + 1), [-math.inf] * (last + 2)
        for step in range(last - 1, -1, -1):
            for s, _, backward, _, up in self._numbered[last - step - 1 :: -1]:
                rest = max(from_clocks[s], from_gradients[s] + up) + backward
                from_gradients[s] = -math.inf
                from_clocks[s] = rest
                from_gradients[s + 1] = max(from_gradients[s + 1], rest)
        return from_clocks, from_gradients

    def _state(self, num_steps: int) -> tuple[list[float], list[float]]:
        """Clocks and gradients after so many steps, for the caller to change."""
        last = len(self._numbered) - 1
        begun = max([step for step in self._states if step <= num_steps], default=0)
        if begun:
            clocks, gradients = self._states[begun]
            clocks, gradients = clocks.copy(), gradients.copy()
        else:
            clocks, gradients = [0.0] * (last + 1), [0.0] * (last + 2)
        for step in range(begun, num_steps):
            if step < last:
                self._fill(step, clocks, gradients)
            else:
                self._steady(clocks, gradients)
            if num_steps - step <= _KEPT // 2:
                self._keep(step + 1, clocks, gradients)
        return clocks, gradients

    def _keep(self, num_steps: int, clocks: list[float], gradients: list[float]) -> None:
        self._states[num_steps] = clocks.copy(), gradients.copy()
        if len(self._states) > _KEPT:
            self._states.popitem(last=False)

    def _fill(self, step: int, clocks: list[float], gradients: list[float]) -> None:
        last, arrival = len(self._numbered) - 1, 0.0
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
        arrival = 0.0
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
