"""Is the loss still a number, and where it should be? Reported, never a reason to move a rank.

A jump of the loss is told at once, one of the gradient norm with its second iteration: norms do jump tenfold and more
for a lone iteration in healthy runs. Only one that lies beyond what heavy tails reach is told by itself.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from evenkeel.services.detector.domain.frames.observation import Bools, Floats, FrameObservation, Ints
from evenkeel.services.detector.domain.frames.table import Range
from evenkeel.services.detector.domain.memory.middle import RecentValues, median
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFinding:
    """A loss or gradient norm that is not finite or jumped.

    Attributes:
        finite: It is a number that jumped; otherwise it is NaN or infinite.
        ranks: Ranks that reported it while others did not; empty when all did.
        name: ``loss`` or ``gradient norm``.
        value: What was reported.
        usual: Recent median.
    """

    finite: bool
    ranks: tuple[int, ...]
    name: str
    value: float
    usual: float


@dataclass(slots=True, eq=False)
class ReportedSeries:
    """Recent values of one quantity, and whether it is being complained about."""

    ratio: float = field(metadata=GIVEN)
    heavy_tailed: bool = field(metadata=GIVEN)
    recent: RecentValues = field(default_factory=lambda: RecentValues(_WINDOW))
    num_calm: int = _CALM_TO_REARM
    num_high: int = 0

    def jumped(self, value: float, middle: float) -> bool:
        """Whether a value is far above the usual one."""
        spread = _SPREAD_OF_MIDDLE * self.recent.median_distance
        return value > middle + max(_SPIKE_SIGMAS * spread, (self.ratio - 1) * abs(middle))

    def is_certain(self, value: float) -> bool:
        """Whether a value that jumped needs no second one; of what is heavy-tailed the noise is a factor."""
        if not self.heavy_tailed or self.num_high > 0:
            return True
        recent = np.log(np.maximum(list(self.recent), _TINY))
        middle = median(recent)
        spread = _SPREAD_OF_MIDDLE * median(np.abs(recent - middle))
        return math.log(value) - middle > _LONE_SPREADS * spread

    def complains(self, value: float) -> float | None:
        """Takes the next finite value; the usual one where it begins to be news."""
        usual = self.usual
        jumped = len(self.recent) >= _FEWEST and self.jumped(value, usual)
        certain = jumped and self.is_certain(value)
        self.num_high = self.num_high + 1 if jumped else 0
        self.recent.append(value)  # A level that stays becomes the usual one.
        if not jumped:
            self.num_calm += 1
        return usual if certain and self.rearm() else None

    def rearm(self) -> bool:
        """A bad value came: True where none was complained about shortly before."""
        armed, self.num_calm = self.num_calm >= _CALM_TO_REARM, 0
        return armed

    @property
    def usual(self) -> float:
        """Median of the newest values; NaN before the first."""
        return self.recent.median if len(self.recent) else math.nan


@dataclass(slots=True, eq=False)
class LossWatch:
    """Follows loss and gradient norm of one job.

    Attributes:
        loss: Values of the loss.
        gradient_norm: Those of the gradient norm.
    """

    loss: ReportedSeries = field(default_factory=lambda: ReportedSeries(_SPIKE_RATIO, heavy_tailed=False))
    gradient_norm: ReportedSeries = field(default_factory=lambda: ReportedSeries(_GRADIENT_RATIO, heavy_tailed=True))

    def observe(self, frame: FrameObservation, ranges: tuple[Range, Range]) -> list[LossFinding]:
        """Takes one frame and the ranges of what it reports; each bad stretch is reported once."""
        losses, norms = ranges
        found = []
        if losses[0]:
            found.append(self._observe("loss", frame.losses, frame.ranks, frame.has_loss, losses))
        if norms[0]:
            norm = self._observe("gradient norm", frame.gradient_norms, frame.ranks, frame.has_gradient_norm, norms)
            found.append(norm)
        return [each for each in found if each is not None]

    def _observe(self, name: str, values: Floats, ranks: Ints, reported: Bools, known: Range) -> LossFinding | None:
        _, all_finite, value, highest = known
        series = self.loss if name == "loss" else self.gradient_norm
        if not all_finite:
            if not series.rearm():
                return None
            values = values[reported]
            finite = np.isfinite(values)
            bad = tuple(ranks[reported][~finite].tolist())
            blamed = () if len(bad) == len(values) else bad
            return LossFinding(
                finite=False, ranks=blamed, name=name, value=float(values[~finite][0]), usual=series.usual
            )
        if value < highest:
            value = median(values[reported])
        usual = series.complains(value)
        return None if usual is None else LossFinding(finite=True, ranks=(), name=name, value=value, usual=usual)
