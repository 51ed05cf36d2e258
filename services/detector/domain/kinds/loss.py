"""Is the loss still a number, and where it should be? Reported, never a reason to move a rank.

A jump of the loss is told at once, one of the gradient norm with its second iteration: norms do jump tenfold and more
for a lone iteration in healthy runs. Only one that lies beyond what heavy tails reach is told by itself.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats
from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.memory.newest import with_newest
from evenkeel.services.detector.domain.memory.state import GIVEN

# Short: a young loss falls fast, and a fall within the window looks like noise.
_WINDOW = 32
_FEWEST = 32
_SPIKE_SIGMAS = 10.0
_SPIKE_RATIO = 1.2
_GRADIENT_RATIO = 20.0
_CALM_TO_REARM = 8
# Beyond so many spreads Student noise with 4 degrees of freedom falls twice in a million iterations.
_LONE_SPREADS = 50.0
_SPREAD_OF_MIDDLE = 1.4826
_TINY = 1e-300
_OF_ALL = "the training, not hardware: look at this iteration's data, the learning rate and the precision"
_OF_SOME = "look at the data of these ranks first; if it comes again on other data, diagnose their devices"


@dataclass(slots=True, eq=False)
class ReportedSeries:
    """Recent values of one quantity, and whether it is being complained about."""

    ratio: float = field(metadata=GIVEN)
    heavy_tailed: bool = field(metadata=GIVEN)
    values: Floats = field(default_factory=lambda: np.zeros(0))
    num_calm: int = _CALM_TO_REARM
    num_high: int = 0

    def jumped(self, value: float) -> bool:
        """Whether a value is far above the usual one."""
        usual, spread = self.usual, _spread_of(self.values)
        return value > usual + max(_SPIKE_SIGMAS * spread, (self.ratio - 1) * abs(usual))

    def is_certain(self, value: float) -> bool:
        """Whether a value that jumped needs no second one; of what is heavy-tailed the noise is a factor."""
        if not self.heavy_tailed or self.num_high > 0:
            return True
        recent = np.log(np.maximum(self.values, _TINY))
        return math.log(value) - float(np.median(recent)) > _LONE_SPREADS * _spread_of(recent)

    def complains(self, value: float) -> bool:
        """Takes the next finite value; True where it begins to be news."""
        jumped = len(self.values) >= _FEWEST and self.jumped(value)
        certain = jumped and self.is_certain(value)
        self.num_high = self.num_high + 1 if jumped else 0
        self.values = with_newest(self.values, value, _WINDOW)  # A level that stays becomes the usual one.
        if not jumped:
            self.num_calm += 1
        return certain and self.rearm()

    def rearm(self) -> bool:
        """A bad value came: True where none was complained about shortly before."""
        armed, self.num_calm = self.num_calm >= _CALM_TO_REARM, 0
        return armed

    @property
    def usual(self) -> float:
        """Median of the newest values; NaN before the first."""
        return float(np.median(self.values)) if len(self.values) else math.nan


@dataclass(eq=False)
class Loss(KindWatch):
    """Follows loss and gradient norm of one job; each bad stretch is told once.

    Attributes:
        loss: Values of the loss.
        gradient_norm: Those of the gradient norm.
    """

    name = "loss"

    loss: ReportedSeries = field(default_factory=lambda: ReportedSeries(_SPIKE_RATIO, heavy_tailed=False))
    gradient_norm: ReportedSeries = field(default_factory=lambda: ReportedSeries(_GRADIENT_RATIO, heavy_tailed=True))

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame; planned pauses too, as numbers do not depend on time."""
        frame = look.frame
        told = (
            ("loss", self.loss, frame.losses, frame.has_loss),
            ("gradient norm", self.gradient_norm, frame.gradient_norms, frame.has_gradient_norm),
        )
        found = [_judged(name, series, frame, values, reported) for name, series, values, reported in told]
        return [each for each in found if each is not None]


def _judged(
    name: str, series: ReportedSeries, frame: FrameObservation, values: Floats, reported: Bools
) -> KindFinding | None:
    """What is news in one iteration's values; names ranks only where others reported a good value."""
    ranks, values = frame.ranks[reported], values[reported]
    if not len(values):
        return None
    bad, usual = ~np.isfinite(values), series.usual
    is_finite = not bad.any()
    value = float(np.median(values)) if is_finite else float(values[bad][0])
    if not (series.complains(value) if is_finite else series.rearm()):
        return None
    text = f"{name} is {value:g}; its recent median is {usual:g}"
    blamed = () if is_finite or bad.all() else tuple(ranks[bad].tolist())
    return KindFinding(
        kind=VerdictKind.SPIKE if is_finite else VerdictKind.NOT_FINITE,
        ranks=blamed,
        throughput=1.0,
        confidence=0.9 if is_finite else 0.999,
        first_iteration=frame.iteration,
        evidence=(Evidence(name=name, value=value if math.isfinite(value) else 0.0, unit="", text=text),),
        advice=_OF_SOME if blamed else _OF_ALL,
    )


def _spread_of(values: Floats) -> float:
    return _SPREAD_OF_MIDDLE * float(np.median(np.abs(values - np.median(values))))
