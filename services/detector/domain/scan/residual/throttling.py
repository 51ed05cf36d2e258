"""Which part of the time a quota throttled each rank, by what its control group counts."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Floats


@dataclass(slots=True, eq=False)
class Throttling:
    """The newest reading of each rank's host, and the part of the time before it that was throttled."""

    _shares: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    def read(self, readings: Floats) -> None:
        """Takes what came of the hosts with a frame.

        Args:
            readings: One row each: rank, when it was read in seconds, how long it was throttled so far in seconds.
        """
        for number, at, seconds in readings.tolist():
            rank = int(number)
            read_at, counted, share = self._shares.get(rank, (np.nan, 0.0, 0.0))
            took, grown = at - read_at, seconds - counted
            if took > 0 and grown >= 0:
                share = min(grown / took, 1.0)
            self._shares[rank] = at, seconds, share

    def shares(self, ranks: npt.NDArray[np.int64]) -> Floats:
        """The part of its time in which each rank was throttled of late; 0 where nothing was read."""
        return np.array([self._shares[rank][2] if rank in self._shares else 0.0 for rank in ranks.tolist()])
