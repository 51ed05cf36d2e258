"""A rank whose iterations are slow now and then, without a lasting cause, and too often for the job's noise.

Counted against how often the other ranks of the job are as slow, so a job whose noise has a heavy tail stays quiet: the
binomial tail of the count (Chernoff's bound) must be beyond the operator's budget.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats
from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look

_EVERY = 4
"""It looks at every fourth iteration."""
_FEWEST_SEEN = 32
_FEWEST_SLOW = 4
_BODIES = 8.0
_SMALLEST_EXCESS = 0.05
"""A residual below this, in log units of time, is no slow iteration, whatever the noise."""
_WORTH_TELLING = 0.01
"""Slow iterations that cost a rank less than this part of its time on average are not told."""
SHORTEST_PERIOD = 4
FEWEST_TICKS = 4
"""Slow iterations that keep a clock are so far apart at least, and so many."""
_MEMORY = 96
_DEVICES_FOR_BODY = 64
"""About so many devices tell how large the noise of a job is."""


@dataclass(eq=False)
class Jitter(KindWatch):
    """Tells a rank once, until it was calm for a while."""

    name = "jitter"

    _told: dict[int, int] = field(default_factory=dict)

    def go_back(self, iteration: int) -> None:
        """Who was told of was told of by then."""
        self._told = {rank: min(told, iteration) for rank, told in self._told.items()}

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        frame = look.frame
        if not look.plain or frame.iteration % _EVERY:
            return []
        slow = slow_iterations(look.residuals, look.residuals)
        if not np.count_nonzero(slow):
            return []
        seen = np.isfinite(look.residuals)
        counts, totals = slow.sum(axis=1), seen.sum(axis=1)
        found = []
        for entry in np.flatnonzero((counts >= _FEWEST_SLOW) & (totals >= _FEWEST_SEEN) & ~look.ill).tolist():
            rank, total, length = int(frame.ranks[entry]), int(totals[entry]), look.residuals.shape[1]
            others = np.arange(len(frame)) != entry
            usual = (float(counts[others].sum()) + 0.5) / (float(totals[others].sum()) + 50.0)
            if total * _divergence(float(counts[entry]) / total, usual) < look.limit:
                continue
            columns = _off_clock(slow[entry], seen[entry])
            nats = total * _divergence(len(columns) / total, usual)
            excess = look.residuals[entry, columns]
            if nats < look.limit or excess.sum() < _WORTH_TELLING * total or not _scattered(columns):
                continue
            known = self._told.get(rank)
            self._told[rank] = frame.iteration
            if known is None or frame.iteration - known > _MEMORY:
                first = max(frame.iteration - (length - 1 - int(columns[0])), 0)
                found.append(_finding(rank, excess, total, nats, usual, first))
        return found


def slow_iterations(residuals: Floats, within: Floats) -> Bools:
    """Which residuals stand out of the body of the job's noise on the slow side.

    Args:
        residuals: Residuals to look at.
        within: The job's residuals, one row a device; of many devices a part says enough.
    """
    slow: Bools = residuals > _SMALLEST_EXCESS
    if not slow.any():
        return slow
    some = within[:: max(len(within) // _DEVICES_FOR_BODY, 1)]
    sizes = np.abs(some)
    known = sizes[np.isfinite(sizes)]
    body = 1.4826 * float(np.median(known)) if len(known) else 0.0
    found: Bools = residuals > max(_SMALLEST_EXCESS, _BODIES * body)
    return found


def _off_clock(slow: Bools, seen: Bools) -> npt.NDArray[np.int64]:
    """The slow iterations of a window without those at which a clock ticked, if there is one.

    A clock: since its first tick each was slow. What comes by the clock is a periodic pause, and a lone slow iteration
    beside it is no jitter yet.
    """
    columns, kept = np.flatnonzero(slow), np.zeros(0, dtype=np.int64)
    for first in columns.tolist():
        for period in (columns[columns >= first + SHORTEST_PERIOD] - first).tolist():
            ticks = np.arange(first, len(slow), period)
            ticks = ticks[seen[ticks]]
            if len(ticks) >= max(FEWEST_TICKS, len(kept) + 1) and slow[ticks].all():
                kept = ticks
    return np.setdiff1d(columns, kept)


def _scattered(columns: npt.NDArray[np.int64]) -> bool:
    """At least three stretches, and not one clock: a lasting slowdown and a periodic pause have kinds of their own."""
    gaps = np.diff(columns)
    apart = gaps[gaps > 1]
    return len(apart) >= 2 and (len(apart) < 3 or bool(np.ptp(apart) > 2))


def _divergence(share: float, usual: float) -> float:
    """Kullback-Leibler divergence of one Bernoulli from another, nats."""
    if share <= usual:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - usual)) if share < 1 else 0.0
    return share * math.log(share / usual) + rest


def _finding(rank: int, excess: Floats, total: int, nats: float, usual: float, first: int) -> KindFinding:
    lost = float(np.expm1(excess).sum()) / total
    return KindFinding(
        kind=VerdictKind.JITTER,
        ranks=(rank,),
        throughput=1 / (1 + lost),
        confidence=0.99,
        first_iteration=first,
        evidence=(
            Evidence(
                name="slow iterations",
                value=float(len(excess)),
                unit="iterations",
                text=f"of {total}, by {100 * float(np.expm1(excess).mean()):.0f} % on average",
            ),
            Evidence(
                name="likelihood",
                value=nats,
                unit="nats",
                text=f"other ranks: {100 * usual:.2f} % of iterations so slow",
            ),
        ),
        advice=f"look for what shares rank {rank}'s host now and then: other processes, interrupts, memory, its clock",
    )
