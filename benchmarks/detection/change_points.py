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
    """

    def __init__(self, hazard: float = 1 / 250) -> None:
        self._hazard = hazard
        self._scale: float | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all segments."""
        self._weights = np.ones(1)
        self._mean, self._kappa = np.zeros(1), np.full(1, 0.01)
        self._alpha, self._beta = np.ones(1), np.full(1, 1e-4)

    def update(self, value: float) -> int:
        """Takes the next point; returns the most likely run length, 0 when a change just happened."""
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
