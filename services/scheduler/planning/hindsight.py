"""How far a job's plans fall short of their predictions, learned from those that were measured.

The cost model is calibrated on the layout in force, so what is left is what it does not know of *other* layouts. The
mean logarithm of measured over predicted seconds, with the weight of one plan that came out as predicted, corrects the
prediction of the next change before it is asked whether the change pays.
"""

import math
from dataclasses import dataclass, replace

_LARGEST = math.log(3.0)
"""One plan counts for no more than a factor of three: beyond that something else happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """What a job's measured plans say about the next prediction.

    Attributes:
        num_plans: Plans that were measured.
        sum_of_logarithms: Of measured over predicted seconds.
    """

    num_plans: int = 0
    sum_of_logarithms: float = 0.0

    def after(self, predicted_seconds: float, measured_seconds: float) -> "Hindsight":
        """A plan was measured; one that had no prediction teaches nothing."""
        if not (predicted_seconds > 0.0 and measured_seconds > 0.0 and math.isfinite(measured_seconds)):
            return self
        error = math.log(measured_seconds / predicted_seconds)
        return replace(
            self,
            num_plans=self.num_plans + 1,
            sum_of_logarithms=self.sum_of_logarithms + max(-_LARGEST, min(_LARGEST, error)),
        )

    @property
    def factor(self) -> float:
        """Measured over predicted seconds that is expected of the next plan."""
        return math.exp(self.sum_of_logarithms / (self.num_plans + 1.0))
