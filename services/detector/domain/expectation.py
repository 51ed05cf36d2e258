"""An online regressor with forgetting that stays finite and knows how far off it may be.

Recursive least squares in information form: the weighted moments of the data are kept and forgotten, and a small ridge
system is solved afresh when weights are needed. Nothing is propagated through an inverse, so rounding cannot build up
and directions that the data stopped showing are held by the ridge instead of blowing up.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from river import base

from services.detector.domain.middle import median

Floats = npt.NDArray[np.float64]

_TINY = 1e-300

# The interval forgets a start that takes long to settle within some tens of observations; runs are often no longer.
_SPREAD_RATE, _WIDTH_RATE = 0.05, 0.2


class ForgettingLeastSquares(base.Regressor):
    """Least squares that forgets, with a ridge on scaled features and a calibrated interval.

    Each feature is scaled by its own recent root mean square, so units do not matter. The interval is adaptive
    conformal: its half-width, in units of the recent spread of the residuals, grows on a miss and shrinks on a hit
    until it covers the wanted share, whatever the shape of the noise (Gibbs and Candes, arXiv 2106.00170).

    Parameters
    ----------
    forgetting
        Weight that an observation keeps after each later one, above 0 and at most 1.
    ridge
        Penalty on each scaled coefficient, relative to the weight of the data.
    primary
        Name of a feature that is almost free of the penalty: where features cannot be told apart by the data, it
        explains the target. Empty for none.
    coverage
        Share of the observations that ``predict_interval`` should hold.
    relative
        Noise is proportional to the prediction instead of constant.

    Examples:
    --------
    >>> from services.detector.domain.expectation import ForgettingLeastSquares
    >>> model = ForgettingLeastSquares(forgetting=0.99)
    >>> for i in range(200):
    ...     x = {"tokens": 1000.0 + i % 7, "squares": 1e6 * (1 + i % 5)}
    ...     model.learn_one(x, 2e-5 * x["tokens"] + 3e-9 * x["squares"])
    >>> round(model.predict_one({"tokens": 1000.0, "squares": 2e6}), 3)
    0.026

    """

    def __init__(
        self,
        forgetting: float = 0.998,
        ridge: float = 1e-4,
        primary: str = "",
        coverage: float = 0.95,
        relative: bool = False,
    ):
        self.forgetting = forgetting
        self.ridge = ridge
        self.primary = primary
        self.coverage = coverage
        self.relative = relative
        self._index: dict[Any, int] = {}
        self._moments: Floats = np.zeros((0, 0))
        self._products: Floats = np.zeros(0)
        self._weights: Floats | None = None
        self._mass = 0.0
        self._spread = 0.0
        self._num_scored = 0.0
        self._half_width = 3.5

    @property
    def mass(self) -> float:
        """Weight of the data remembered: the number of batches learned, less what was forgotten."""
        return self._mass

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Scores the prediction of ``x`` against ``y``, then learns it."""
        self.learn_rows(list(x), np.array([[float(value) for value in x.values()]]), np.array([float(y)]))

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The expected target of ``x``; 0 before anything was learned."""
        return float(self.predict_rows(list(x), np.array([[float(value) for value in x.values()]]))[0])

    def predict_interval(self, x: Mapping[Any, Any]) -> tuple[float, float]:
        """Lower and upper end of the interval that holds the target with probability ``coverage``."""
        expected = self.predict_one(x)
        reach = self._half_width * self._spread * (abs(expected) if self.relative else 1.0)
        return expected - reach, expected + reach

    def predict_rows(self, names: Sequence[Any], rows: Floats) -> Floats:
        """The expected targets of many rows whose columns are called ``names``."""
        weights = self._solved()
        if list(self._index) == list(names):  # as for whoever always brings the same columns
            found: Floats = np.asfortranarray(rows) @ weights
            return found
        columns = [(column, self._index[name]) for column, name in enumerate(names) if name in self._index]
        if not columns:
            return np.zeros(len(rows))
        picked = [column for column, _ in columns]
        return np.asarray(rows[:, picked] @ weights[[index for _, index in columns]])

    def learn_rows(self, names: Sequence[Any], rows: Floats, targets: Floats, weights: Floats | None = None) -> None:
        """Learns many rows as one batch: they are forgotten together, as one step of time.

        Args:
            names: What the columns are called.
            rows: One row an observation; not finite ones are left out.
            targets: One an observation.
            weights: Relative trust in each observation; equal when None.
        """
        # A sum is a number only where all its parts are.
        if not math.isfinite(np.add.reduce(rows, axis=None) + np.add.reduce(targets)):
            usable = np.isfinite(rows).all(axis=1) & np.isfinite(targets)
            rows, targets = rows[usable], targets[usable]
            weights = None if weights is None else weights[usable]
        if not len(targets):
            return
        if self._mass > 0:
            self._score(self.predict_rows(names, rows), targets)
        for name in names:
            if name not in self._index:
                self._index[name] = len(self._index)
                self._moments = np.pad(self._moments, (0, 1))
                self._products = np.pad(self._products, (0, 1))
        if weights is None:
            weighted, added = rows * (1.0 / len(targets)), 1.0
        else:
            trust = weights / len(targets)
            weighted, added = rows * trust[:, None], float(trust.sum())
        self._moments *= self.forgetting
        self._products *= self.forgetting
        if list(self._index) == list(names):
            self._moments += weighted.T @ rows
            self._products += weighted.T @ targets
        else:
            columns = [self._index[name] for name in names]
            self._moments[np.ix_(columns, columns)] += weighted.T @ rows
            self._products[columns] += weighted.T @ targets
        self._mass = self._mass * self.forgetting + added
        self._weights = None

    def _score(self, expected: Floats, targets: Floats) -> None:
        """Moves the spread and the half-width by how these targets fell before they were learned."""
        errors = np.abs(targets - expected)
        if self.relative:
            errors = errors / np.maximum(np.abs(expected), _TINY)
        size = median(errors)
        self._num_scored += 1
        rate = max(1.0 / self._num_scored, _SPREAD_RATE)
        if self._spread > 0:
            outside = np.count_nonzero(errors > self._half_width * self._spread) / len(errors)
            step = max(_WIDTH_RATE, 1.0 / self._num_scored) * self._half_width
            self._half_width = min(max(self._half_width + step * (outside - (1 - self.coverage)), 0.1), 1e3)
            size = min(size, 5 * self._spread + _TINY) if self._num_scored > 10 else size
        self._spread += rate * (size - self._spread)

    def _solved(self) -> Floats:
        if self._weights is None:
            diagonal = self._moments.diagonal()
            scale = np.sqrt(np.maximum(diagonal, _TINY))
            scale[diagonal <= 0] = 1.0
            penalties = np.full(len(scale), self.ridge)
            if self.primary in self._index:
                penalties[self._index[self.primary]] = self.ridge * 1e-6
            system = self._moments / (scale[:, None] * scale)
            system.reshape(-1)[:: len(scale) + 1] += penalties + 1e-12
            self._weights = np.linalg.solve(system, self._products / scale) / scale
        return self._weights

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain values and arrays."""
        return {
            "names": list(self._index),
            "moments": self._moments.copy(),
            "products": self._products.copy(),
            "mass": self._mass,
            "spread": self._spread,
            "num_scored": self._num_scored,
            "half_width": self._half_width,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._index = {name: index for index, name in enumerate(state["names"])}
        self._moments = state["moments"].copy()
        self._products = state["products"].copy()
        self._weights = None
        self._mass = state["mass"]
        self._spread = state["spread"]
        self._num_scored = state["num_scored"]
        self._half_width = state["half_width"]
