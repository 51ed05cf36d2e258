"""One rank's loss or gradient norm departs from its peers': wrong arithmetic, though everything runs.

Ranks report the loss and the norm as they know them. Where these are the same number for all, they agree but for the
order of summation; where each rank has its own, it keeps its usual distance. Either way a rank's distance from the
median is compared with its own past, and a departure must last two iterations while most of its peers stay.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats, Ints
from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.memory.state import DERIVED

_RATE = 1 / 32
_FEWEST = 12
_FEWEST_REPORTS = 3
"""Of fewer nobody knows whose number is wrong."""
_SPREADS = 25.0
_SMALLEST_DEPARTURE = 1e-3
"""Relative differences below this are rounding and the order of summation."""
_LASTING = 2
_MOST_AT_ONCE = 0.25
_CALM = 16


@dataclass(eq=False)
class Corruption(KindWatch):
    """Tells a rank once, until it agreed for a while."""

    name = "suspected_corruption"

    _ranks: list[int] = field(default_factory=list)
    # The bytes of these ranks: a frame's column may be a view that keeps all of its frame alive.
    _newest: bytes = field(default=b"", metadata=DERIVED)
    # By what is reported, for each rank: times seen, usual distance, its usual scatter, departures in a row.
    _known: dict[str, Floats] = field(default_factory=dict)
    _told: dict[int, int] = field(default_factory=dict)

    def go_back(self, iteration: int) -> None:
        """Who was told of was told of by then."""
        self._told = {rank: min(told, iteration) for rank, told in self._told.items()}

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame; planned pauses too, as numbers do not depend on time."""
        frame = look.frame
        if frame.ranks.tobytes() != self._newest:
            self._newest, ranks = frame.ranks.tobytes(), frame.ranks.tolist()
            if ranks != self._ranks:
                self._ranks, self._known = ranks, {}
        found: list[KindFinding] = []
        for name, values, reported in (
            ("gradient norm", frame.gradient_norms, frame.has_gradient_norm),
            ("loss", frame.losses, frame.has_loss),
        ):
            entries = (reported & np.isfinite(values) & (values > 0)).nonzero()[0]
            if len(entries) >= _FEWEST_REPORTS:
                found += self._judge(frame, name, entries, values[entries])
        return found

    def _judge(self, frame: FrameObservation, name: str, entries: Ints, values: Floats) -> list[KindFinding]:
        count, iteration = len(frame), frame.iteration
        known = self._known.setdefault(name, np.zeros((4, count)))
        taken = known.take(entries, axis=1)
        seen, middle, spread, lasting = taken
        usual = float(np.median(values))
        apart = np.log(values)
        apart -= math.log(usual)
        apart -= middle
        size = np.abs(apart)
        some = 0
        if size.item(int(size.argmax())) > _SMALLEST_DEPARTURE:
            departed = size > np.maximum(_SMALLEST_DEPARTURE, _SPREADS * spread)
            departed &= seen >= _FEWEST
            some = int(np.count_nonzero(departed))
            # Where many depart at once it is the training, or the median itself that moved.
            if some > max(1, _MOST_AT_ONCE * count):
                departed[:], some = False, 0
        seen += 1.0
        rate: Floats = np.maximum(1.0 / seen, _RATE)
        if some:
            seen -= departed
            rate[departed] = 0.0
            lasting += 1.0
            lasting *= departed
        else:
            lasting[:] = 0.0
        size -= spread
        size *= rate
        spread += size
        apart *= rate
        middle += apart
        known[3] = 0.0  # also of who reports nothing now
        known[:, entries] = taken
        if not some:
            return []
        found = []
        for entry in np.flatnonzero(known[3] >= _LASTING).tolist():
            rank = self._ranks[entry]
            before = self._told.get(rank)
            self._told[rank] = iteration
            if before is None or iteration - before > _CALM:
                value = float(values[np.searchsorted(entries, entry)])
                found.append(_finding(rank, name, value, usual, iteration - _LASTING + 1))
        return found


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
