"""Clocks of a recording's workers that do not agree, put right by the traffic between them.

A receive ends after its send began, and the members of a collective after the last of them began. Where a recording
says otherwise its clocks differ, as a rule by a constant for each worker: half the difference of the quickest transfers
there and back between stages, and what separates the ends of a collective between replicas.
"""

from collections import deque
from dataclasses import replace

import numpy as np

from evenkeel.attribution.graph.wiring import Wiring
from evenkeel.attribution.operations import OperationError, Operations
from evenkeel.numeric.arrays import Floats, Ints

Place = tuple[int, int]

_BELIEVED_SECONDS = 1e-3
"""A message that arrives so long before it was sent proves that clocks differ."""

_MOST_STEPS = 8


def aligned(operations: Operations) -> tuple[Operations, float]:
    """The recording on one clock, and by how many seconds the clocks of its workers had differed at most; 0 for none.

    Where no constants put the clocks right, as when one was set anew or runs fast, each step is put right by its own
    traffic. Operations of steps that form no graph say nothing about clocks; where no steps do, all is left as it is.
    """
    steps = np.unique(operations.step)
    looked_at = steps[:: max(len(steps) // _MOST_STEPS, 1)][:_MOST_STEPS]
    traffic = _traffic_of(operations, looked_at)
    if traffic.most_early_seconds < _BELIEVED_SECONDS:
        return operations, 0.0
    shift = _shift(operations, traffic)
    found = replace(operations, start_seconds=operations.start_seconds - shift)
    if _traffic_of(found, looked_at).most_early_seconds >= _BELIEVED_SECONDS:
        for step in steps:
            rows = np.flatnonzero(operations.step == step)
            shift[rows] = _shift(operations.select(rows), _traffic_of(operations, step[None]))
        found = replace(operations, start_seconds=operations.start_seconds - shift)
    return found, float(np.ptp(shift))


def _traffic_of(operations: Operations, steps: Ints) -> "_Traffic":
    traffic = _Traffic()
    for step in steps.tolist():
        try:
            traffic.observe(operations.select(operations.step == step))
        except OperationError:
            continue
    return traffic


def _shift(operations: Operations, traffic: "_Traffic") -> Floats:
    """How far the clock of each operation's worker is ahead of the others'."""
    offsets = traffic.offsets()
    middle = float(np.median(list(offsets.values()))) if offsets else 0.0
    places = zip(operations.dp_rank.tolist(), operations.stage.tolist(), strict=True)
    return np.array([offsets.get(place, middle) - middle for place in places])


class _Traffic:
    """What transfers and collectives say about the clocks of those who meet in them.

    Attributes:
        most_early_seconds: By how much somebody ended before somebody else began.
    """

    def __init__(self) -> None:
        self.most_early_seconds = 0.0
        self._there: dict[tuple[Place, Place], float] = {}
        self._together: dict[tuple[Place, Place], list[float]] = {}

    def observe(self, step: Operations) -> None:
        """Takes the operations of one step."""
        places = list(zip(step.dp_rank.tolist(), step.stage.tolist(), strict=True))
        starts, ends = step.start_seconds, step.end_seconds
        for members in list(Wiring(step).groups()):
            first, others = int(members[0]), [int(row) for row in members[1:]]
            self.most_early_seconds = max(
                self.most_early_seconds, float(starts[members].max() - ends[members].min()) if others else 0.0
            )
            transfer = step.optype[first].endswith("-send")
            for row in others:
                apart = float(ends[row] - ends[first])
                pair = places[first], places[row]
                if transfer:
                    self._there[pair] = min(self._there.get(pair, apart), apart)
                else:
                    self._together.setdefault(pair, []).append(apart)

    def offsets(self) -> dict[Place, float]:
        """How far the clock of each worker is ahead of the first one's, as far as traffic joins them."""
        ahead: dict[Place, dict[Place, float]] = {}

        def join(one: Place, other: Place, seconds: float) -> None:
            ahead.setdefault(one, {})[other] = seconds
            ahead.setdefault(other, {})[one] = -seconds

        for (one, other), there in self._there.items():
            back = self._there.get((other, one))
            if back is not None:
                join(one, other, (there - back) / 2)
        for (one, other), apart in self._together.items():
            join(one, other, float(np.median(apart)))
        found: dict[Place, float] = {}
        for root in sorted(ahead):
            if root in found:
                continue
            found[root] = 0.0
            waiting = deque([root])
            while waiting:
                one = waiting.popleft()
                for other, seconds in ahead[one].items():
                    if other not in found:
                        found[other] = found[one] + seconds
                        waiting.append(other)
        return found
