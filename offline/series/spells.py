"""Spells of slowness that were over soon: what comes again like them is no news until it lasts longer.

An evaluation that nobody marked is a short spell. A long one that keeps a clock is one too, from its third time on. Nor
is told what is over by the time that a job has warmed up again after a restart.
"""

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.offline.series.expected.restarts import Restarts
from evenkeel.offline.series.finding import SeriesVerdict

LONGEST_SHORT_SPELL = 7
"""Iterations of a spell that may come again at any time."""

LONGEST_KNOWN_SPELL = 40
"""Iterations of one that may come again when its clock says so."""

_OFF_THE_CLOCK = 2
_NUM_TO_BELIEVE = 5


class Spells:
    """The spells of a series so far; iterations count from its beginning.

    Attributes:
        num_told: How many were told.
    """

    __slots__ = ("_begun", "_held", "_is_told", "_last", "_may_warm_up", "_short", "_since", "num_told")

    def __init__(self) -> None:
        self.num_told = 0
        self._short = 0
        self._begun = (-1, -1)
        self._last = 0
        self._since = 0
        self._may_warm_up = False
        # What is held back while it may be one more spell like others.
        self._held: SeriesVerdict | None = None
        self._is_told = False

    def begin(self, since: int, *, may_warm_up: bool) -> None:
        """The series is slow since then; after a restart it may be that it only warms up."""
        self._since, self._may_warm_up = since, may_warm_up

    def recovery(self, verdict: SeriesVerdict | None) -> SeriesVerdict | None:
        """The series is not slow: its recovery, if that was decided and the spell was told."""
        told, self._is_told, self._held = self._is_told, False, None
        return verdict if told else None

    def news(
        self,
        verdict: SeriesVerdict | None,
        *,
        num_observed: int,
        residuals: Floats,
        level: float,
        scale: float,
        restarts: Restarts,
    ) -> SeriesVerdict | None:
        """The verdict to tell now: one on a spell that may be as short as others were waits until it is longer.

        Args:
            verdict: On the spell that lasts, if there is one of this iteration.
            num_observed: Iterations so far.
            residuals: The newest, oldest first.
            level: Where the spell is known to stand, log units of time.
            scale: Of the noise.
            restarts: Those of the job.
        """
        self._held = self._held if verdict is None else verdict
        if self._held is None:
            return None
        usual = self._usual(self._since)
        if (usual or self._may_warm_up) and not self._is_told:
            lasted = num_observed - self._since + 1
            newest, share = (_NUM_TO_BELIEVE, 0.75) if self._may_warm_up else (1, 0.5)
            over = float(np.nanmedian(residuals[-newest:])) < share * level
            settling = self._may_warm_up and restarts.settling(residuals, scale=scale)
            if over or settling or lasted <= usual + 1:
                return None
        held, self._held = self._held, None
        self.num_told += not self._is_told
        self._is_told = True
        return held

    def end(self, at: int) -> None:
        """The spell that lasts was over by then."""
        since, length = self._since, at - self._since
        if length <= LONGEST_SHORT_SPELL:
            self._short = max(self._short, length)
        if length <= LONGEST_KNOWN_SPELL:
            # A spell that its clock foretold but that was no longer than usual keeps its length.
            self._last = max(self._last, length) if self._keeps_clock(since) else length
            self._begun = (self._begun[1], since)

    def _usual(self, since: int) -> int:
        """Iterations that a spell which began at ``since`` may last and be like others; 0 for none."""
        return max(self._short, self._last) if self._keeps_clock(since) else self._short

    def _keeps_clock(self, since: int) -> bool:
        before, newest = self._begun
        return before >= 0 and abs((since - newest) - (newest - before)) <= _OFF_THE_CLOCK
