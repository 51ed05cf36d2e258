"""Spells of slowness that were over soon: what comes again like them is no news until it lasts longer.

An evaluation that nobody marked is a short spell. A long one that keeps a clock is one too, from its third time on.
"""

LONGEST_SHORT_SPELL = 7
"""Iterations of a spell that may come again at any time."""

LONGEST_KNOWN_SPELL = 40
"""Iterations of one that may come again when its clock says so."""

_OFF_THE_CLOCK = 2


class Spells:
    """The spells of a series so far; iterations count from its beginning."""

    __slots__ = ("_begun", "_last", "_short")

    def __init__(self) -> None:
        self._short = 0
        self._begun = (-1, -1)
        self._last = 0

    def ended(self, since: int, length: int) -> None:
        """A spell that began at ``since`` is over."""
        if length <= LONGEST_SHORT_SPELL:
            self._short = max(self._short, length)
        if length <= LONGEST_KNOWN_SPELL:
            # A spell that its clock foretold but that was no longer than usual keeps its length.
            self._last = max(self._last, length) if self._keeps_clock(since) else length
            self._begun = (self._begun[1], since)

    def usual(self, since: int) -> int:
        """Iterations that a spell which began at ``since`` may last and be like others; 0 for none."""
        return max(self._short, self._last) if self._keeps_clock(since) else self._short

    def _keeps_clock(self, since: int) -> bool:
        before, newest = self._begun
        return before >= 0 and abs((since - newest) - (newest - before)) <= _OFF_THE_CLOCK
