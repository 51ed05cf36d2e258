"""Bayesian online change-point detection (Adams and MacKay, arXiv 0710.3742) on a series of iteration times."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Floats = NDArray[np.float64]

MAX_RUN_LENGTH = 200


class BayesianChangePoints:
    """Run-length posterior with a normal-inverse-gamma model of each segment.

    Args:
        hazard: Prior probability of a change at each point.
        settle: Points that a new segment needs before the change is told.
    """

    def __init__(self, hazard: float = 1 / 250, settle: int = 2) -> None:
        self._hazard = hazard
        self._settle = settle
        self._scale: float | None = None
        self._run_length = 0
        self._settling: int | None = None
        self._weights = np.ones(1)
        self._mean, self._kappa = np.zeros(1), np.full(1, 0.01)
        self._alpha, self._beta = np.ones(1), np.full(1, 1e-4)

    def update(self, value: float) -> int | None:
        """Takes the next point; returns how many points ago a segment began if that became certain just now.

        A change is told once, when the segment after it has ``settle`` points.
        """
        previous, run_length = self._run_length, self._most_likely_run_length(value)
        self._run_length = run_length
        if run_length < previous:
            self._settling = run_length
        elif self._settling is not None:
            self._settling += 1
        if self._settling is None or self._settling < self._settle:
            return None
        since, self._settling = self._settling, None
        return since

    def _most_likely_run_length(self, value: float) -> int:
        if self._scale is None:
            self._scale = value
        x = value / self._scale - 1.0
        spread = self._beta * (self._kappa + 1) / (self._alpha * self._kappa)
        freedom = 2 * self._alpha
        log_density = (
            gammaln((freedom + 1) / 2)
            - gammaln(freedom / 2)
            - 0.5 * np.log(freedom * np.pi * spread)
            - (freedom + 1) / 2 * np.log1p((x - self._mean) ** 2 / (freedom * spread))
        )
        joint = self._weights * np.exp(log_density - log_density.max())
        weights = np.concatenate([[joint.sum() * self._hazard], joint * (1 - self._hazard)])
        mean = (self._kappa * self._mean + x) / (self._kappa + 1)
        beta = self._beta + self._kappa * (x - self._mean) ** 2 / (2 * (self._kappa + 1))
        self._mean = np.concatenate([[0.0], mean])[:MAX_RUN_LENGTH]
        self._beta = np.concatenate([[1e-4], beta])[:MAX_RUN_LENGTH]
        self._kappa = np.concatenate([[0.01], self._kappa + 1])[:MAX_RUN_LENGTH]
        self._alpha = np.concatenate([[1.0], self._alpha + 0.5])[:MAX_RUN_LENGTH]
        self._weights = weights[:MAX_RUN_LENGTH] / weights[:MAX_RUN_LENGTH].sum()
        return int(np.argmax(self._weights))
