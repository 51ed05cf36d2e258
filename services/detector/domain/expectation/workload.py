"""What a rank's iteration should cost: compute seconds from the work it was given.

seconds = a * flops + b * flops that grow with squared lengths + c * micro-batches

``a`` is the price of an operation, ``b`` how much dearer attention's operations are, ``c`` what every micro-batch costs
however small. Flops come from the rank's own share of the model, so what was learned under one layout holds under the
next. Where the data cannot tell the three apart, all is put down to ``a``. Ranks whose shares are much alike say little
about ``c``: a stage that is dearer than its flops would pass for it, and what is expected of a much smaller share would
be far off. So ``c`` is believed reluctantly, and is never below 0.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.domain.expectation.forgetting_least_squares import ForgettingLeastSquares
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.memory.newest import with_newest

_FEATURES = ("flops", "square_flops", "micro_batches")
_FRAMES_TO_LEARN = 3
_SMALLEST_SHARE = 0.2
_SHORTEST_SECONDS = 1e-12
_RATE_OF_PRICE = 0.02
_LEAST_COMMON, _COMMON_KEPT = 0.1, 16


def work_of(frame: FrameObservation) -> Floats:
    """What each entry of a frame had to do, one row an entry: operations, those of attention, micro-batches."""
    return np.column_stack([frame.token_flops + frame.square_flops, frame.square_flops, frame.num_micro_batches])


@dataclass(slots=True, eq=False)
class WorkExpectation:
    """The expected compute seconds of each rank of a job; one regressor for the whole job."""

    model: ForgettingLeastSquares = field(
        default_factory=lambda: ForgettingLeastSquares(
            forgetting=0.998, ridge=1e-3, primary="flops", reluctant="micro_batches"
        )
    )
    _seconds_per_flop: float = 0.0
    # By how much all together were off in the newest frames.
    _common: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def has_learned(self) -> bool:
        """Enough frames were learned to expect something of the next one."""
        return self.model.mass >= _FRAMES_TO_LEARN

    def expect(self, work: Floats) -> Floats:
        """Expected compute seconds, all above 0 once one frame was learned.

        Far from what was seen the fit may say anything; the bare price of an operation bounds it from below.

        Args:
            work: One row each, as :func:`work_of` gives it.
        """
        least = np.maximum(_SMALLEST_SHARE * self._seconds_per_flop * work[:, 0], _SHORTEST_SECONDS)
        return np.maximum(self.model.predict_rows(_FEATURES, work), least)

    def learn(self, work: Floats, seconds: Floats, unit: Floats, *, common: float = 0.0) -> None:
        """Learns the entries of a frame, each by its relative error.

        Args:
            work: One row each, as :func:`work_of` gives it.
            seconds: What it took.
            unit: About what it should have taken: what was expected, where that was known.
            common: What all took beyond that, log units. Where it is more than usual, as after a pause, it is hardly
                the price of work, and counts less (Huber, Annals of Mathematical Statistics 35, 1964).
        """
        if not len(seconds):
            return
        usual = max(float(np.median(self._common)) if len(self._common) else 0.0, _LEAST_COMMON)
        self._common = with_newest(self._common, abs(common), _COMMON_KEPT)
        unit = unit * math.sqrt(max(abs(common) / usual, 1.0))
        price = float(np.median(seconds / (work[:, 0] + 1e-300)))
        self.model.learn_rows(_FEATURES, work / unit[:, None], seconds / unit)
        rate = _RATE_OF_PRICE if self._seconds_per_flop else 1.0
        self._seconds_per_flop += rate * (price - self._seconds_per_flop)
