"""How far a job's plans fall short of their predictions, learned from those that were measured, lever by lever.

The cost model is calibrated on the layout in force, so what is left is what it does not know of *other* layouts. The
mean logarithm of measured over predicted seconds, with the weight of one plan that came out as predicted, corrects the
prediction of the next change before it is asked whether the change pays. A lever that was pulled in some of those plans
has a mean of its own, drawn towards the job's with the weight of two plans; a plan that pulls several is expected to be
off by the mean of theirs.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

_LARGEST = math.log(3.0)
"""One plan counts for no more than a factor of three: beyond that something else happened."""

_PULL = 2.0
_WORTH_TELLING = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """What a job's measured plans say about the next prediction.

    Attributes:
        num_plans: Plans that were measured.
        sum_of_logarithms: Of measured over predicted seconds.
        levers: The same two numbers of the plans that pulled each lever.
    """

    num_plans: int = 0
    sum_of_logarithms: float = 0.0
    levers: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    def after(self, predicted_seconds: float, measured_seconds: float, levers: Collection[str] = ()) -> "Hindsight":
        """A plan that pulled these levers was measured; one that had no prediction teaches nothing."""
        if not (predicted_seconds > 0.0 and measured_seconds > 0.0 and math.isfinite(measured_seconds)):
            return self
        error = max(-_LARGEST, min(_LARGEST, math.log(measured_seconds / predicted_seconds)))
        known = dict(self.levers)
        for lever in set(levers):
            count, total = known.get(lever, (0, 0.0))
            known[lever] = count + 1, total + error
        return replace(
            self,
            num_plans=self.num_plans + 1,
            sum_of_logarithms=self.sum_of_logarithms + error,
            levers=known,
        )

    @property
    def factor(self) -> float:
        """Measured over predicted seconds that is expected of the next plan."""
        return math.exp(self._mean)

    @property
    def _mean(self) -> float:
        return self.sum_of_logarithms / (self.num_plans + 1.0)

    def factor_of(self, lever: str) -> float:
        """The same of a plan that pulls one lever."""
        count, total = self.levers.get(lever, (0, 0.0))
        return math.exp((total + _PULL * self._mean) / (count + _PULL))

    def factor_for(self, levers: Collection[str]) -> float:
        """The same of a plan that pulls these levers."""
        if not levers:
            return self.factor
        logarithms = [math.log(self.factor_of(lever)) for lever in sorted(set(levers))]
        return math.exp(sum(logarithms) / len(logarithms))

    def words(self, levers: Collection[str]) -> str:
        """One sentence on what it means for a plan that pulls these levers; empty when nothing is known."""
        if not self.num_plans:
            return ""
        told = [
            f"{lever} {self.factor_of(lever):.2f} ({self.levers[lever][0]} measured)"
            for lever in sorted(set(levers))
            if lever in self.levers and abs(self.factor_of(lever) / self.factor - 1.0) >= _WORTH_TELLING
        ]
        own = f"; by lever: {', '.join(told)}" if told else ""
        return (
            f"Hindsight: this job's plans are expected to take {self.factor:.2f} times what is predicted "
            f"({self.num_plans} measured){own}, this one {self.factor_for(levers):.2f} times."
        )
