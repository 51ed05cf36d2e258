"""What is told of a device whose speed is another than before.

What a device loses on one clock adds to what it loses on the others: a throughput of 0.5 is twice the time that its
work takes on a healthy device, whether it works, sleeps or waits for a core meanwhile. The wall has all of it, so it
counts where it says more than the others together, beyond doubt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.domain.scan.residual.clocks import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChange:
    """A device became slow, slower, less slow, or recovered.

    Attributes:
        device: Its column.
        throughput: Relative to healthy; 1 when it has recovered.
        margin: Half-width of the 95 % interval.
        clock: The clock that says most; of a recovered device the one that did.
        ratios: Times the expected work that each clock adds up to, of those that are slow.
        first_iteration: The first that showed it, or that was healthy again.
        num_frames: Frames since then, as far as they are kept.
        scale: Noise of one frame on that clock, log units.
        distance: Standard errors between the level and healthy; of a recovery, between healthy and what was told.
    """

    device: int
    throughput: float
    margin: float
    clock: Clock
    ratios: dict[Clock, float]
    first_iteration: int
    num_frames: int
    scale: float
    distance: float

    @property
    def recovered(self) -> bool:
        """It is healthy now."""
        return self.throughput == 1


def throughputs_of(clocks: Sequence[Clock], ratios: Floats, doubts: Floats) -> Floats:
    """Throughput of each device.

    Args:
        clocks: What was compared.
        ratios: Times the expected work that each clock adds up to, one row a clock, one column a device; 1 of those
            that are not slow.
        doubts: What each of them is at least, as a share of it.
    """
    walls = np.array([clock is Clock.WALL for clock in clocks])
    parts = (ratios[~walls] - 1).sum(axis=0)
    beyond_doubt = ratios * doubts
    alone = np.where(beyond_doubt > 1, ratios, 1.0)
    whole = (np.where(parts > 0, beyond_doubt, alone)[walls] - 1).sum(axis=0)
    return np.asarray(1 / (1 + np.maximum(parts, whole)))
