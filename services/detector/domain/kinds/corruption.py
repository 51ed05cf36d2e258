"""One rank's loss or gradient norm departs from its peers': wrong arithmetic, though everything runs.

Ranks report the loss and the norm as they know them. Where these are the same number for all, they agree but for the
order of summation; where each rank has its own, it keeps its usual distance. Either way a rank's distance from the
median is compared with its own past, and a departure must last two iterations while most of its peers stay.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.kind import KindFinding, KindWatch, Look
from services.detector.domain.middle import median
from services.detector.domain.pipeline_grid import same_numbers
from services.detector.domain.verdict import Evidence, VerdictKind

Floats = npt.NDArray[np.float64]

_RATE = 1 / 32
_FEWEST = 12
_FEWEST_REPORTS = 3
_SPREADS = 25.0
SMALLEST_DEPARTURE = 1e-3
"""Relative differences below this are rounding and the order of summation."""
_LASTING = 2
_MOST_AT_ONCE = 0.25
_CALM = 16


class Corruption(KindWatch):
    """Tells a rank once, until it agreed for a while."""

    name = "suspected_corruption"

    def __init__(self) -> None:
        self._ranks: list[int] = []
        self._newest: npt.NDArray[np.int64] | None = None
        # By what is reported, for each rank: times seen, usual distance, its usual scatter, departures in a row.
        self._known: dict[str, Floats] = {}
        self._told: dict[int, int] = {}

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame; planned pauses too, as numbers do not depend on time."""
        frame = look.frame
        if self._newest is None or not same_numbers(self._newest, frame.ranks):
            self._newest, ranks = frame.ranks, frame.ranks.tolist()
            if ranks != self._ranks:
                self._ranks, self._known = ranks, {}
        found = []
        for name, values, reported in (
            ("gradient norm", frame.gradient_norms, frame.has_gradient_norm),
            ("loss", frame.losses, frame.has_loss),
        ):
            if np.count_nonzero(reported) < _FEWEST_REPORTS:
                continue
            usable = reported & np.isfinite(values) & (values > 0)
            if np.count_nonzero(usable) >= _FEWEST_REPORTS:
                found += self._judge(look, name, np.where(usable, values, np.nan))
        return found

    def _judge(self, look: Look, name: str, values: Floats) -> list[KindFinding]:
        count, iteration = len(values), look.frame.iteration
        seen, middle, spread, lasting = self._known.setdefault(name, np.zeros((4, count)))
        usual = median(values[np.isfinite(values)])
        apart = np.log(values / usual) - middle
        reach = np.maximum(SMALLEST_DEPARTURE, _SPREADS * spread)
        departed = (seen >= _FEWEST) & (np.abs(apart) > reach)
        # Where many depart at once it is the training, or the median itself that moved.
        if np.count_nonzero(departed) > max(1, _MOST_AT_ONCE * count):
            departed[:] = False
        kept = np.isfinite(apart) & ~departed
        seen += kept
        rate = np.where(kept, np.maximum(1.0 / np.maximum(seen, 1.0), _RATE), 0.0)
        step = np.where(kept, apart, 0.0)
        spread += rate * (np.abs(step) - spread)
        middle += rate * step
        lasting[:] = np.where(departed, lasting + 1, 0)
        found = []
        for entry in np.flatnonzero(lasting >= _LASTING).tolist():
            rank = self._ranks[entry]
            before = self._told.get(rank)
            self._told[rank] = iteration
            if before is None or iteration - before > _CALM:
                found.append(_finding(rank, name, float(values[entry]), usual, iteration - _LASTING + 1))
        return found

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values and arrays."""
        return {
            "ranks": list(self._ranks),
            "known": {name: known.copy() for name, known in self._known.items()},
            "told": sorted(self._told.items()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._ranks, self._newest = list(state["ranks"]), None
        self._known = {name: known.copy() for name, known in state["known"].items()}
        self._told = {int(rank): int(iteration) for rank, iteration in state["told"]}


def _finding(rank: int, name: str, value: float, usual: float, first_iteration: int) -> KindFinding:
    return KindFinding(
        kind=VerdictKind.SUSPECTED_CORRUPTION,
        ranks=(rank,),
        throughput=1.0,
        confidence=0.9,
        first_iteration=first_iteration,
        evidence=(
            Evidence(name=name, value=value, unit="", text=f"reported by rank {rank}; median of its peers {usual:g}"),
            Evidence(
                name="departure",
                value=100 * abs(math.expm1(math.log(value / usual))),
                unit="%",
                text=f"from its peers, {_LASTING} iterations in a row, while the others stayed where they were",
            ),
        ),
        advice=f"check rank {rank}'s device (repeat the step on another, diagnose it) before the next checkpoint",
    )
