"""An online regressor with forgetting that stays finite and knows how far off it may be.

Recursive least squares in information form: the weighted moments of the data are kept and forgotten, and a small ridge
system is solved afresh when weights are needed. Nothing is propagated through an inverse, so rounding cannot build up
and directions that the data stopped showing are held by the ridge instead of blowing up.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from river import base

Floats = npt.NDArray[np.float64]

_TINY = 1e-300
# Of the ridge.
_SHARE_OF_PRIMARY, _SHARE_OF_RELUCTANT = 1e-6, 300.0

# The interval forgets a start that takes long to settle within some tens of observations; runs are often no longer.
_SPREAD_RATE, _WIDTH_RATE = 0.05, 0.2
_SCORED_TOGETHER = 4


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
    reluctant
        Name of a feature that is believed only where the data are plain: it is penalised more, and its weight is never
        below 0. For what easily soaks up errors of the others and then misleads far from the data. Empty for none.
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
        reluctant: str = "",
        coverage: float = 0.95,
        relative: bool = False,
    ):
        self.forgetting = forgetting
        self.ridge = ridge
        self.primary = primary
        self.reluctant = reluctant
        self.coverage = coverage
        self.relative = relative
        self._index: dict[Any, int] = {}
        self._names: tuple[Any, ...] = ()
        # Row and column 0 are the target's, the others those of the features in ``_index``.
        self._moments: Floats = np.zeros((1, 1))
        self._weights: Floats | None = None
        self._mass = 0.0
        self._spread = 0.0
        self._num_scored = 0.0
        self._half_width = 3.5
        # How far off newest targets were, one row a batch: several are scored at once, when that is asked for at last.
        self._unscored: Floats = np.zeros((_SCORED_TOGETHER, 0))
        self._num_unscored = 0

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
        self._score()
        expected = self.predict_one(x)
        reach = self._half_width * self._spread * (abs(expected) if self.relative else 1.0)
        return expected - reach, expected + reach

    def predict_rows(self, names: Sequence[Any], rows: Floats) -> Floats:
        """The expected targets of many rows whose columns are called ``names``."""
        return self.predict_columns(names, rows.T)

    def predict_columns(self, names: Sequence[Any], columns: Floats) -> Floats:
        """The same, the other way round: one row a feature, one column an observation."""
        weights = self._solved()
        if self._names == tuple(names):  # as for whoever always brings the same
            return np.asarray(np.dot(weights, columns))
        known = [(place, self._index[name]) for place, name in enumerate(names) if name in self._index]
        if not known:
            return np.zeros(columns.shape[1])
        return np.asarray(np.dot(weights[[index for _, index in known]], columns[[place for place, _ in known]]))

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
        moments, root = self._moments.tolist(), math.sqrt(self._mass)
        for place, value in enumerate(row.tolist(), start=1):
            if moments[place][place] == 0 and value != 0:
                return math.inf
            moments[place][0] = value * root  # in the place of the target's products
        ridge = [0.0 if name == self.primary else self.ridge for name in self._index]
        reach = _ridge_weights(moments, [each + 1e-9 for each in ridge])
        products = [sum(map(operator.mul, mine[1:], reach)) for mine in moments[1:]]
        variance = noise**2 / self._mass * sum(map(operator.mul, products, reach))
        shrunk = [(each * far) ** 2 * moments[n][n] for n, (each, far) in enumerate(zip(ridge, reach, strict=True), 1)]
        return math.sqrt(variance + believed**2 * sum(shrunk))

    def learn_rows(self, names: Sequence[Any], rows: Floats, targets: Floats, weights: Floats | None = None) -> None:
        """Learns many rows as one batch: they are forgotten together, as one step of time.

        Args:
            names: What the columns are called.
            rows: One row an observation; not finite ones are left out.
            targets: One an observation.
            weights: Relative trust in each observation; equal when None.
        """
        columns = np.empty((len(names) + 1, len(targets)))
        columns[0], columns[1:] = targets, rows.T
        self.learn_columns(names, columns, weights)

    def learn_columns(self, names: Sequence[Any], columns: Floats, weights: Floats | None = None) -> None:
        """The same, the other way round: one column an observation; its target first, then one row a feature."""
        added, mass = _moments_of(columns, weights)
        # A sum is a number only where all its parts are.
        if not math.isfinite(sum(added.ravel().tolist())):
            usable = np.isfinite(columns).all(axis=0)
            columns = columns[:, usable]
            added, mass = _moments_of(columns, None if weights is None else weights[usable])
        if not columns.shape[1]:
            return
        if self._mass > 0:
            self._compare(columns[0], self.predict_columns(names, columns[1:]))
        if self._names != tuple(names):
            self._meet(names)
        self._moments *= self.forgetting
        if self._names == tuple(names):
            self._moments += added
        else:
            places = [0, *(1 + self._index[name] for name in names)]
            self._moments[np.ix_(places, places)] += added
        self._mass = self._mass * self.forgetting + mass
        self._weights = None

    def _meet(self, names: Sequence[Any]) -> None:
        """Features of which some may be new."""
        for name in names:
            if name not in self._index:
                self._index[name] = len(self._index)
                self._moments = np.pad(self._moments, (0, 1))
        self._names = tuple(self._index)

    def _compare(self, targets: Floats, expected: Floats) -> None:
        """Notes how these targets fell before they were learned."""
        errors = targets - expected
        np.abs(errors, out=errors)
        if self.relative:
            size = np.abs(expected)
            size += _TINY
            errors /= size
        if len(errors) != self._unscored.shape[1]:
            self._score()
            self._unscored = np.empty((_SCORED_TOGETHER, len(errors)))
        self._unscored[self._num_unscored] = errors
        self._num_unscored += 1
        if self._num_unscored == _SCORED_TOGETHER:
            self._score()

    def _score(self) -> None:
        """Moves the spread and the half-width by how the newest targets fell, batch by batch."""
        ordered, self._num_unscored = np.sort(self._unscored[: self._num_unscored], axis=1), 0
        middle, count = ordered.shape[1] // 2, ordered.shape[1]
        for errors in ordered:
            size = float(errors[middle] if count % 2 else (errors[middle - 1] + errors[middle]) / 2.0)
            self._num_scored += 1
            rate = max(1.0 / self._num_scored, _SPREAD_RATE)
            if self._spread > 0:
                within = errors.searchsorted(self._half_width * self._spread, side="right")
                outside = 1.0 - float(within) / count
                step = max(_WIDTH_RATE, 1.0 / self._num_scored) * self._half_width
                self._half_width = min(max(self._half_width + step * (outside - (1 - self.coverage)), 0.1), 1e3)
                size = min(size, 5 * self._spread + _TINY) if self._num_scored > 10 else size
            self._spread += rate * (size - self._spread)

    def _solved(self) -> Floats:
        if self._weights is None:
            shares = {self.primary: _SHARE_OF_PRIMARY, self.reluctant: _SHARE_OF_RELUCTANT}
            penalties = [self.ridge * shares.get(name, 1.0) for name in self._names]
            moments, place = self._moments.tolist(), self._index.get(self.reluctant)
            if place is None:
                self._weights = np.array(_ridge_weights(moments, penalties))
                return self._weights
            # The reluctant one comes last, so that the others need not be looked at again where it would be below 0.
            if place + 1 < len(penalties):
                for row in (penalties, *moments):
                    row.append(row.pop(place + (row is not penalties)))
                moments.append(moments.pop(place + 1))
            weights = _ridge_weights(moments, penalties, last_is_reluctant=True)
            weights.insert(place, weights.pop())
            self._weights = np.array(weights)
        return self._weights

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain values and arrays."""
        self._score()
        return {
            "names": list(self._names),
            "moments": self._moments[1:, 1:].copy(),
            "products": self._moments[0, 1:].copy(),
            "mass": self._mass,
            "spread": self._spread,
            "num_scored": self._num_scored,
            "half_width": self._half_width,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._names = tuple(state["names"])
        self._index = {name: index for index, name in enumerate(self._names)}
        self._moments = np.pad(state["moments"], (1, 0))
        self._moments[0, 1:] = self._moments[1:, 0] = state["products"]
        self._weights = None
        self._mass = state["mass"]
        self._spread = state["spread"]
        self._num_scored = state["num_scored"]
        self._half_width = state["half_width"]
        self._num_unscored = 0


def _moments_of(columns: Floats, weights: Floats | None) -> tuple[Floats, float]:
    """Mean products of targets and features with one another, targets first, and how much they weigh together."""
    count = max(columns.shape[1], 1)
    if weights is None:
        added: Floats = np.dot(columns, columns.T)
        added *= 1.0 / count
        return added, 1.0
    trust = weights / count
    return np.asarray(np.dot(columns * trust, columns.T)), float(trust.sum())


def _ridge_weights(
    moments: list[list[float]], penalties: list[float], *, last_is_reluctant: bool = False
) -> list[float]:
    """Weights of the features, the penalty of each in units of its own moment; moments as in :func:`_moments_of`.

    By elimination, on plain numbers: for a handful of features that is a fraction of the cost of arrays. A ridge on
    the diagonal makes the system positive definite, so that no pivot is small and none has to be looked for. A last
    weight that is reluctant is not below 0; the others are then those without it.
    """
    # Of each row what stands on the diagonal and behind it, as the rest is the same once more; then its target.
    rows = []
    for place, penalty in enumerate(penalties, start=1):
        row = moments[place][place:]
        row.append(moments[place][0])
        row[0] += (penalty + 1e-12) * (row[0] if row[0] > 0.0 else 1.0)
        rows.append(row)
    size = len(rows)
    for one, pivot in enumerate(rows):
        for below in range(one + 1, size):
            row, offset = rows[below], below - one
            factor = pivot[offset] / pivot[0]
            for place in range(len(row)):
                row[place] -= factor * pivot[place + offset]
    weights = [0.0] * size
    for one in range(size - 1, -1, -1):
        row = rows[one]
        rest = row[-1]
        for other in range(one + 1, size):
            rest -= row[other - one] * weights[other]
        weights[one] = rest / row[0]
        if last_is_reluctant and one == size - 1 and weights[one] < 0.0:
            weights[one] = 0.0
    return weights
