"""The inner loops of least squares that forget: what an observation adds, how it is scored, what the weights are."""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.memory.middle import middle_of

Floats = npt.NDArray[np.float64]

_TINY = 1e-300
Learned = tuple[int, float, float, float, float]
"""How many observations were learned, what they weigh together, and the scores: spread, their number, half-width."""

# The interval forgets a start that takes long to settle within some tens of observations; runs are often no longer.
_SPREAD_RATE, _WIDTH_RATE = 0.05, 0.2


@compiled
def learn(
    columns: Floats,
    units: Floats,
    trust: Floats,
    moments: Floats,
    forgetting: float,
    relative: bool,
    is_scored: bool,
    scores: tuple[float, float, float],
    coverage: float,
    ridges: Floats,
    reluctant: int,
    weights: Floats,
) -> Learned:
    """Scores some observations, forgets a step, adds the mean products of targets and features, and solves for weights.

    Args:
        columns: One column an observation, its target first; those that are not finite are left out.
        units: What each observation is divided by; nothing for 1.
        trust: In each observation; nothing for the same in all.
        moments: Targets first in both directions; written.
        forgetting: What the moments keep of themselves.
        relative: Errors are relative to what was expected.
        is_scored: How far off the targets were says something.
        scores: Spread, how much was scored, and half-width.
        coverage: What :class:`ForgettingLeastSquares` was asked for.
        ridges: As in :func:`solve`, like the next two.
        reluctant: Place of a feature.
        weights: Of the features, with which the targets are compared before they are learned; written.

    Returns:
        How many observations were learned, what they weigh together, and the scores now.
    """
    size, learned, mass = len(columns), 0, 0.0
    added, one_column, errors = np.zeros((size, size)), np.empty(size), np.empty(columns.shape[1])
    for at in range(columns.shape[1]):
        total, expected = 0.0, 0.0
        for place in range(size):
            one_column[place] = columns[place, at] / units[at] if len(units) else columns[place, at]
            total += one_column[place]
            if place:
                expected += weights[place - 1] * one_column[place]
        if not math.isfinite(total):
            continue
        errors[learned] = abs(one_column[0] - expected) / (abs(expected) + _TINY if relative else 1.0)
        learned += 1
        share = trust[at] if len(trust) else 1.0
        mass += share
        for one in range(size):
            part = share * one_column[one]
            for other in range(one, size):
                added[one, other] += part * one_column[other]
    if learned:
        for one in range(size):
            for other in range(one, size):
                moment = moments[one, other] * forgetting + added[one, other] / learned
                moments[one, other] = moments[other, one] = moment
        solve(moments, ridges, reluctant, weights)
        if is_scored:
            scores = _scored(errors[:learned], scores, coverage)
    return learned, mass / max(learned, 1), scores[0], scores[1], scores[2]


@compiled
def _scored(errors: Floats, scores: tuple[float, float, float], coverage: float) -> tuple[float, float, float]:
    """Spread, how much was scored, and half-width after one more batch of errors, whose order changes."""
    spread, num_scored, half_width = scores
    num_scored += 1
    rate = max(1.0 / num_scored, _SPREAD_RATE)
    num_within, reach = 0, half_width * spread
    for error in errors:
        num_within += error <= reach
    size = middle_of(errors)
    if spread > 0:
        outside = 1.0 - num_within / len(errors)
        step = max(_WIDTH_RATE, 1.0 / num_scored) * half_width
        half_width = min(max(half_width + step * (outside - (1 - coverage)), 0.1), 1e3)
        if num_scored > 10:
            size = min(size, 5 * spread + _TINY)
    spread += rate * (size - spread)
    return spread, num_scored, half_width


@compiled
def solve(moments: Floats, penalties: Floats, reluctant: int, weights: Floats) -> None:
    """Weights of the features, the penalty of each in units of its own moment.

    By elimination: a ridge on the diagonal makes the system positive definite, so that no pivot is small and none has
    to be looked for. The reluctant feature comes last, so that the others need not be looked at again where its weight
    would be below 0, which becomes 0.

    Args:
        moments: As in :func:`learn`.
        penalties: One a feature.
        reluctant: Place of the feature that is; -1 for none.
        weights: One a feature; written.
    """
    size = len(penalties)
    order = np.arange(size)
    if reluctant >= 0:
        order[reluctant:-1] = order[reluctant + 1 :].copy()
        order[-1] = reluctant
    rows = np.empty((size, size + 1))
    for one in range(size):
        mine = 1 + order[one]
        for other in range(size):
            rows[one, other] = moments[mine, 1 + order[other]]
        rows[one, size] = moments[mine, 0]
        own = rows[one, one]
        rows[one, one] += (penalties[order[one]] + 1e-12) * (own if own > 0.0 else 1.0)
    for one in range(size):
        for below in range(one + 1, size):
            factor = rows[one, below] / rows[one, one]
            for place in range(below, size + 1):
                rows[below, place] -= factor * rows[one, place]
    for one in range(size - 1, -1, -1):
        rest = rows[one, size]
        for other in range(one + 1, size):
            rest -= rows[one, other] * weights[order[other]]
        rest /= rows[one, one]
        weights[order[one]] = 0.0 if rest < 0.0 and order[one] == reluctant else rest
