"""How far the clocks of nodes are apart, from traffic that goes both ways between them.

As in NTP (Mills 1991): seen on two clocks, the quickest message from u to v takes its true time plus v's offset, the
quickest one back takes its true time minus it; half the difference is the offset, up to half of what the two true times
differ. The quickest of many, because delays only add; and of the newest iterations those count most whose round trip
was quickest. A line through them follows clocks that run at different speeds; a clock that is set starts afresh.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats, Ints

NodePair = tuple[str, str]

_WINDOW = 16
_FEWEST_FOR_A_LINE = 4
_LARGEST_SKEW = 5e-4
_JUMP_SECONDS = 1e-3
_SHARPNESS = 0.5


@dataclass(slots=True, eq=False)
class ClockOffsets:
    """Offset and skew for pairs of nodes, second against first."""

    _rows: dict[NodePair, int] = field(default_factory=dict)
    _at: Floats = field(default_factory=lambda: np.full(_WINDOW, np.nan))
    _midpoints: Floats = field(default_factory=lambda: np.zeros((0, _WINDOW)))
    _round_trips: Floats = field(default_factory=lambda: np.zeros((0, _WINDOW)))

    def rows_of(self, pairs: list[NodePair]) -> Ints:
        """The row of each pair; unknown pairs get one."""
        fresh = [pair for pair in pairs if pair not in self._rows]
        for pair in fresh:
            self._rows[pair] = len(self._rows)
        if fresh:
            added = np.full((len(fresh), _WINDOW), np.nan)
            self._midpoints = np.concatenate([self._midpoints, added])
            self._round_trips = np.concatenate([self._round_trips, added])
        return np.array([self._rows[pair] for pair in pairs], dtype=np.int64)

    def skews(self, rows: Ints) -> Floats:
        """Seconds that the second node's clock gains on the first's per second."""
        return self._lines(rows)[1]

    def observe(self, at_seconds: float, rows: Ints, forward_seconds: Floats, backward_seconds: Floats) -> Floats:
        """Takes one iteration's quickest messages and returns the offsets at ``at_seconds``.

        Args:
            at_seconds: To what moment the observations are reduced; grows from call to call.
            rows: Pairs of nodes, each at most once.
            forward_seconds: Arrival on the second node's clock less departure on the first's, quickest of all.
            backward_seconds: The same for the way back.

        Returns:
            Seconds that the second clock is ahead; NaN where there was no traffic in both directions.
        """
        middle = (forward_seconds - backward_seconds) / 2
        round_trip = np.maximum(forward_seconds + backward_seconds, 0.0)
        origin, slope = self._lines(rows)
        newest = self._at[np.isfinite(self._at)]
        predicted = origin + slope * (at_seconds - (newest[-1] if len(newest) else 0.0))
        was_set = np.abs(middle - predicted) > 2 * round_trip + _JUMP_SECONDS
        self._midpoints[rows[was_set]] = np.nan
        self._at[:-1], self._at[-1] = self._at[1:].copy(), at_seconds
        for window, newest_value in ((self._midpoints, middle), (self._round_trips, round_trip)):
            window[:, :-1] = window[:, 1:].copy()
            window[:, -1] = np.nan
            window[rows, -1] = newest_value
        # No message arrives before it was sent: that bounds the offset, whatever the line says.
        offsets: Floats = np.clip(self._lines(rows)[0], -backward_seconds, forward_seconds)
        return np.where(round_trip > 0, offsets, middle)

    def _lines(self, rows: Ints) -> tuple[Floats, Floats]:
        """Weighted line through each row's window: its value at the newest moment, and its slope."""
        values = self._midpoints[rows]
        known = np.isfinite(values)
        trips = np.where(known, self._round_trips[rows], np.inf)
        quickest = np.minimum(trips.min(axis=1, initial=np.inf), 1e9)[:, None]
        doubt = np.where(known, trips - quickest, 0.0) + _SHARPNESS * quickest + 1e-7
        weights = np.where(known, 1.0 / doubt**2, 0.0)
        totals = np.where(known.any(axis=1), weights.sum(axis=1), 1.0)
        finite = self._at[np.isfinite(self._at)]
        at = np.where(known, self._at - (finite[-1] if len(finite) else 0.0), 0.0)
        values = np.where(known, values, 0.0)
        mean_at, mean = (weights * at).sum(axis=1) / totals, (weights * values).sum(axis=1) / totals
        apart = np.where(known, at - mean_at[:, None], 0.0)
        spread = (weights * apart**2).sum(axis=1)
        slope = (weights * apart * (values - mean[:, None])).sum(axis=1) / np.where(spread > 0, spread, 1.0)
        enough = known.sum(axis=1) >= _FEWEST_FOR_A_LINE
        slope = np.where(enough, np.clip(slope, -_LARGEST_SKEW, _LARGEST_SKEW), 0.0)
        return np.where(known.any(axis=1), mean - slope * mean_at, np.nan), slope
