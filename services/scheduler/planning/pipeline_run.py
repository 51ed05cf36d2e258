"""Seconds of a pipeline whose micro-batches are alike, step by step: what schedules with such a short way share.

A step is one forward and one backward of every stage, as the schedule has them. How a pipeline starts and runs does not
hang on the number of micro-batches, only when it ends: quotas near each other, as the search for quotas asks for, share
nearly all steps, and how a full pipeline drains is worked out once.

Once it is full every step is the same: each clock is a maximum of earlier clocks plus constants, which is a matrix in
the (max, +) algebra. So many steps are leapt over by its powers (Baccelli, Cohen, Olsder, Quadrat: Synchronization and
Linearity, 1992), and thousands of micro-batches take as long to ask about as hundreds.
"""

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_KEPT = 16
_FAR = 256
_GRID = 16
_MOST_STAGES = 64
_Floats = npt.NDArray[np.float64]
_State = tuple[list[float], list[float]]


class PipelineRun(ABC):
    """One pipeline on its way: clocks after some steps, and when gradients of each stage arrive before it.

    Args:
        num_stages: At least 1.
        to_gradients: Of each stage, seconds from its clock after a step to the arrival of its gradient before it.
    """

    def __init__(self, num_stages: int, to_gradients: Sequence[float]) -> None:
        self._last = num_stages - 1
        self._to_gradients = to_gradients
        self._states: OrderedDict[int, _State] = OrderedDict()
        self._rests: _State | None = None
        self._full: list[float] = []
        self._powers: list[_Floats] = []

    def seconds(self, num_micro_batches: int) -> float:
        """When all that the schedule has for so many micro-batches is done."""
        if num_micro_batches < self._last:
            return self._few(num_micro_batches)
        clocks, gradients = self._state(num_micro_batches)
        if self._rests is None:
            self._rests = self._rest()
        from_clocks, from_gradients = self._rests
        ends = [at + rest for at, rest in zip(clocks, from_clocks, strict=True)]
        return max(ends + [at + rest for at, rest in zip(gradients, from_gradients, strict=True)])

    @abstractmethod
    def _few(self, num_micro_batches: int) -> float:
        """The end when forwards stop before the last stage has begun."""

    @abstractmethod
    def _rest(self) -> _State:
        """From each clock and from each gradient, when the last forward is done, the longest way to the end.

        Once the pipeline is full it drains in the same way whatever has run before.
        """

    @abstractmethod
    def _fill(self, step: int, clocks: list[float], gradients: list[float]) -> None:
        """A step in which the last stage has nothing to do yet."""

    @abstractmethod
    def _steady(self, clocks: list[float], gradients: list[float]) -> None:
        """A step of a full pipeline."""

    def _state(self, num_steps: int) -> _State:
        """Clocks and gradients after so many steps, for the caller to change.

        Far states follow from those on a grid and from nothing else, so that no answer hangs on earlier questions.
        """
        full = num_steps - self._last
        leapt = 0 if full < _FAR or self._last >= _MOST_STAGES else self._last + full // _GRID * _GRID
        begun = max([step for step in self._states if leapt <= step <= num_steps], default=leapt)
        if begun in self._states:
            clocks, gradients = self._states[begun]
            clocks, gradients = clocks.copy(), gradients.copy()
        elif leapt:
            clocks = self._leap(leapt - self._last - 1)
            gradients = self._gradients(clocks)
        else:
            clocks, gradients = [0.0] * (self._last + 1), [0.0] * (self._last + 2)
        for step in range(begun, num_steps):
            if step < self._last:
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

    def _gradients(self, clocks: Sequence[float]) -> list[float]:
        """What gradients are after a step; nobody comes after the last stage."""
        return [*[clock + more for clock, more in zip(clocks, self._to_gradients, strict=True)], 0.0]

    def _leap(self, num_steps: int) -> list[float]:
        """Clocks after so many more steps of the full pipeline than its first."""
        if not self._powers:
            self._full = self._state(self._last + 1)[0]
            self._powers.append(self._matrix())
        clocks: _Floats = np.array(self._full)
        for place in range(num_steps.bit_length()):
            if place == len(self._powers):
                half = self._powers[-1]
                self._powers.append(np.max(half[:, :, None] + half[None], axis=1))
            if num_steps >> place & 1:
                clocks = np.max(self._powers[place] + clocks, axis=1)
        return clocks.tolist()  # type: ignore[no-any-return]

    def _matrix(self) -> _Floats:
        """``[s][t]``: by how much, at least, clock s after a full pipeline's step is later than clock t before it."""
        columns = []
        for s in range(self._last + 1):
            clocks = [-math.inf] * (self._last + 1)
            clocks[s] = 0.0
            gradients = self._gradients(clocks)
            gradients[-1] = -math.inf
            self._steady(clocks, gradients)
            columns.append(clocks)
        return np.array(columns).T
