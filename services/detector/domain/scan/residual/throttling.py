"""What a rank waited for a core because of a quota, by what its control group counts.

The control group is read a few times a second; the kernel tells of each iteration how long the training thread was
ready and got no core, whoever had it. The quota's part of the latter is what both came to of late.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats, Ints

_MEMORY_SECONDS = 1.0
_UNREAD = (np.nan, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True, eq=False)
class Throttling:
    """A row a rank: seconds throttled by its newest reading; held and queued by then, fading; queued and all since."""

    _known: Floats = field(default_factory=lambda: np.empty((0, len(_UNREAD))))

    def held(self, ranks: Ints, queued_seconds: Floats, wall_seconds: Floats, readings: Floats | None) -> Floats:
        """Seconds of an iteration in which a quota held each rank; 0 where nothing was read of its control group.

        Args:
            ranks: Rank of each entry.
            queued_seconds: How long it was ready and got no core in this iteration.
            wall_seconds: How long that took.
            readings: What came with it, one row each, oldest first: rank, seconds throttled so far; None: nothing.
        """
        of, totals = (np.empty((0, 2)) if readings is None else readings).T
        read = of.astype(np.int64)
        num_new = max(ranks.max(initial=-1), read.max(initial=-1)) + 1 - len(self._known)
        self._known = np.vstack((self._known, np.tile(_UNREAD, (max(num_new, 0), 1))))
        throttled, held, queued, queued_since, since = self._known.T
        queued_since[ranks] += np.nan_to_num(queued_seconds)
        since[ranks] += np.nan_to_num(wall_seconds)
        kept = np.exp(-since[read] / _MEMORY_SECONDS)
        held[read] = held[read] * kept + np.fmax(totals - throttled[read], 0.0)
        queued[read] = queued[read] * kept + queued_since[read]
        throttled[read], queued_since[read], since[read] = totals, 0.0, 0.0
        shares = np.divide(held[ranks], queued[ranks], out=np.zeros(len(ranks)), where=queued[ranks] > 0)
        return np.asarray(queued_seconds * np.minimum(shares, 1.0))
