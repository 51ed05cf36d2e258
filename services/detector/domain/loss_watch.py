"""Is the loss still a number, and where it should be? Reported, never a reason to move a rank."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.detector.domain.middle import RecentValues, median
from services.detector.domain.observation import Floats, FrameObservation, Ints

# Short: a young loss falls fast, and a fall within the window looks like noise.
_WINDOW = 32
_FEWEST = 32
_SPIKE_SIGMAS = 10.0
_SPIKE_RATIO = 1.2
_GRADIENT_RATIO = 20.0
_CALM_TO_REARM = 8


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


class _Series:
    """Recent values of one quantity, and whether it is being complained about."""

    def __init__(self) -> None:
        self.recent = RecentValues(_WINDOW)
        self.num_calm = _CALM_TO_REARM

    def jumped(self, value: float, ratio: float) -> bool:
        if len(self.recent) < _FEWEST:
            return False
        middle = self.recent.median
        if not value > middle + (ratio - 1) * abs(middle):
            return False
        spread = 1.4826 * self.recent.median_distance
        return value > middle + max(_SPIKE_SIGMAS * spread, (ratio - 1) * abs(middle))

    @property
    def usual(self) -> float:
        return self.recent.median if len(self.recent) else math.nan


class LossWatch:
    """Follows loss and gradient norm of one job."""

    def __init__(self) -> None:
        self._series = {"loss": _Series(), "gradient norm": _Series()}

    def observe(self, frame: FrameObservation) -> list[LossFinding]:
        """Takes one frame; each bad stretch is reported once."""
        found = []
        for name, values, reported, ratio in (
            ("loss", frame.losses, frame.has_loss, _SPIKE_RATIO),
            ("gradient norm", frame.gradient_norms, frame.has_gradient_norm, _GRADIENT_RATIO),
        ):
            if not np.count_nonzero(reported):
                continue
            finding = self._observe(name, values[reported], frame.ranks[reported], ratio)
            if finding is not None:
                found.append(finding)
        return found

    def _observe(self, name: str, values: Floats, ranks: Ints, ratio: float) -> LossFinding | None:
        series = self._series[name]
        finite = np.isfinite(values)
        if np.count_nonzero(finite) < len(finite):
            bad = tuple(ranks[~finite].tolist())
            value = float(values[~finite][0])
            armed = series.num_calm >= _CALM_TO_REARM
            series.num_calm = 0
            blamed = () if len(bad) == len(ranks) else bad
            if not armed:
                return None
            return LossFinding(finite=False, ranks=blamed, name=name, value=value, usual=series.usual)
        value, usual = median(values), series.usual
        if series.jumped(value, ratio):
            armed = series.num_calm >= _CALM_TO_REARM
            series.num_calm = 0
            series.recent.append(value)  # A level that stays becomes the usual one.
            return LossFinding(finite=True, ranks=(), name=name, value=value, usual=usual) if armed else None
        series.num_calm += 1
        series.recent.append(value)
        return None

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        return {name: {"recent": list(one.recent), "num_calm": one.num_calm} for name, one in self._series.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        for name, one in self._series.items():
            one.recent = RecentValues(_WINDOW, state[name]["recent"])
            one.num_calm = state[name]["num_calm"]
