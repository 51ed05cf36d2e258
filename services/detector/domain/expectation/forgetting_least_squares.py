"""An online regressor with forgetting that stays finite and knows where it was never shown anything.

Recursive least squares in information form: the weighted moments of the data are kept and forgotten, and a small ridge
system is solved afresh when weights are needed. Nothing is propagated through an inverse, so rounding cannot build up
and directions that the data stopped showing are held by the ridge instead of blowing up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from river import base

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.domain.memory.state import GIVEN

# Of the ridge.
_SHARE_OF_PRIMARY, _SHARE_OF_RELUCTANT = 1e-6, 300.0
_LEAST_RIDGE = 1e-12


@dataclass(eq=False, repr=False)
class ForgettingLeastSquares(base.Regressor):
    """Least squares that forgets, with a ridge on scaled features.

    Each feature is scaled by its own recent root mean square, so units do not matter.

    Parameters
    ----------
    forgetting
        Weight that an observation keeps after each later one, above 0 and at most 1.
    ridge
        Penalty on each scaled coefficient, relative to the weight of the data.
    primary
        Name of a feature that is almost free of the penalty: where features cannot be told apart by the data, it
        explains the target. Empty for none.
    reluctant
        Name of a feature that is believed only where the data are plain: it is penalised more, and its weight is never
        below 0. For what easily soaks up errors of the others and then misleads far from the data. Empty for none.

    Examples:
    --------
    >>> from evenkeel.services.detector.domain.expectation.forgetting_least_squares import ForgettingLeastSquares
    >>> model = ForgettingLeastSquares(forgetting=0.99)
    >>> for i in range(200):
    ...     x = {"tokens": 1000.0 + i % 7, "squares": 1e6 * (1 + i % 5)}
    ...     model.learn_one(x, 2e-5 * x["tokens"] + 3e-9 * x["squares"])
    >>> round(model.predict_one({"tokens": 1000.0, "squares": 2e6}), 3)
    0.026

    """

    forgetting: float = field(default=0.998, metadata=GIVEN)
    ridge: float = field(default=1e-4, metadata=GIVEN)
    primary: str = field(default="", metadata=GIVEN)
    reluctant: str = field(default="", metadata=GIVEN)
    _index: dict[str, int] = field(init=False, default_factory=dict)
    _names: tuple[str, ...] = field(init=False, default=())
    # Row and column 0 are the target's, the others those of the features in ``_index``.
    _moments: Floats = field(init=False, default_factory=lambda: np.zeros((1, 1)))
    _weights: Floats = field(init=False, default_factory=lambda: np.zeros(0))
    _mass: float = field(init=False, default=0.0)

    @property
    def mass(self) -> float:
        """Weight of the data remembered: the number of batches learned, less what was forgotten."""
        return self._mass

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Learns that ``x`` led to ``y``."""
        self.learn_rows(list(x), np.array([[float(value) for value in x.values()]]), np.array([float(y)]))

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The expected target of ``x``; 0 before anything was learned."""
        return float(self.predict_rows(list(x), np.array([[float(value) for value in x.values()]]))[0])

    def predict_rows(self, names: Sequence[Any], rows: Floats) -> Floats:
        """The expected targets of many rows whose columns are called ``names``; what was never learned counts 0."""
        weights = self._weights
        if self._names != tuple(names):
            weights = np.array([weights[self._index[name]] if name in self._index else 0.0 for name in names])
        return np.asarray(rows @ weights)

    def doubt(self, names: Sequence[Any], row: Floats, *, noise: float, believed: float) -> float:
        """How far off the expected target of a row may be, in units of the targets learned: small within the data.

        The root of the mean squared error of a ridge regression, variance and shrinkage, where each scaled weight but
        the primary one is of size ``believed`` (Hoerl and Kennard, Technometrics 12, 1970).

        Args:
            names: What was learned under these names.
            row: One row.
            noise: Scale of one target's noise, in the targets' units.
            believed: How large a scaled weight may be, in the targets' units.
        """
        if self._names != tuple(names) or self._mass <= 0:
            return math.inf
        moments, scales = self._moments[1:, 1:], self._moments.diagonal()[1:]
        if np.count_nonzero(row[scales == 0]):
            return math.inf
        ridge = np.array([0.0 if name == self.primary else self.ridge for name in self._index])
        reach = _solved(moments, row * math.sqrt(self._mass), ridge + 1e-9)
        variance = noise**2 / self._mass * float(reach @ moments @ reach)
        shrunk = float(np.sum((ridge * reach) ** 2 * scales))
        return math.sqrt(variance + believed**2 * shrunk)

    def learn_rows(self, names: Sequence[Any], rows: Floats, targets: Floats) -> None:
        """Learns many rows as one batch: they are forgotten together, as one step of time.

        Args:
            names: What the columns are called.
            rows: One row an observation; not finite ones are left out.
            targets: One an observation.
        """
        fresh = [name for name in names if name not in self._index]
        if fresh:
            self._index |= {name: place for place, name in enumerate(fresh, start=len(self._index))}
            self._names = tuple(self._index)
            self._moments = np.pad(self._moments, (0, len(fresh)))
        known = np.zeros((len(targets), 1 + len(self._index)))
        known[:, 0] = targets
        known[:, [1 + self._index[name] for name in names]] = rows
        known = known[np.isfinite(known.sum(axis=1))]
        if len(known):
            self._moments = self.forgetting * self._moments + known.T @ known / len(known)
            self._mass = self.forgetting * self._mass + 1.0
        self._weights = self._best_weights()

    def _best_weights(self) -> Floats:
        """The weights of all features; a reluctant one that would be worth less than nothing is worth nothing."""
        shares = {self.primary: _SHARE_OF_PRIMARY, self.reluctant: _SHARE_OF_RELUCTANT}
        ridges = np.array([self.ridge * shares.get(name, 1.0) for name in self._index])
        moments, targets = self._moments[1:, 1:], self._moments[1:, 0]
        weights, reluctant = _solved(moments, targets, ridges), self._index.get(self.reluctant, -1)
        if reluctant >= 0 and weights[reluctant] < 0:
            others = np.delete(np.arange(len(ridges)), reluctant)
            weights[reluctant] = 0.0
            weights[others] = _solved(moments[np.ix_(others, others)], targets[others], ridges[others])
        return weights


def _solved(moments: Floats, targets: Floats, ridges: Floats) -> Floats:
    """Weights of features, the penalty of each in units of its own moment; it makes the system positive definite."""
    own = moments.diagonal()
    scales = np.sqrt(np.where(own > 0, own, 1.0))
    scaled = moments / np.outer(scales, scales) + np.diag(ridges + _LEAST_RIDGE)
    found: Floats = np.linalg.solve(scaled, targets / scales) / scales
    return found
