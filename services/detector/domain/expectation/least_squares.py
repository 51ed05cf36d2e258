"""The inner loops of least squares that forget: what an observation adds, and what the weights are."""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Floats = npt.NDArray[np.float64]


@compiled
def learn(
    columns: Floats,
    units: Floats,
    trust: Floats,
    moments: Floats,
    forgetting: float,
    ridges: Floats,
    reluctant: int,
    weights: Floats,
) -> tuple[int, float]:
    """Forgets a step, adds the mean products of some targets and features, and solves for weights.

    Args:
        columns: One column an observation, its target first; those that are not finite are left out.
        units: What each observation is divided by; nothing for 1.
        trust: In each observation; nothing for the same in all.
        moments: Targets first in both directions; written.
        forgetting: What the moments keep of themselves.
        ridges: As in :func:`solve`, like the next two.
        reluctant: Place of a feature.
        weights: Of the features; written.

    Returns:
        How many observations were learned, and what they weigh together.
    """
    size, learned, mass = len(columns), 0, 0.0
    added, one_column = np.zeros((size, size)), np.empty(size)
    for at in range(columns.shape[1]):
        total = 0.0
        for place in range(size):
            one_column[place] = columns[place, at] / units[at] if len(units) else columns[place, at]
            total += one_column[place]
        if not math.isfinite(total):
            continue
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
    return learned, mass / max(learned, 1)


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
