"""Means of noise that lingers, against the sums that their formulas stand for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.detector.domain.autoregression import spread_of_means, worth_of_means

SHARES = st.floats(0.0, 0.98)
LENGTHS = st.integers(1, 64)


def together(share: float, length: int, apart: int) -> float:
    """Covariance of a mean over so many iterations with one that begins ``apart`` later."""
    steps = np.arange(length)
    return float(np.mean(share ** np.abs(steps[:, None] - steps - apart)))


@given(SHARES, LENGTHS)
def test_the_spread_of_means_is_that_of_all_products_of_two(share: float, length: int) -> None:
    assert spread_of_means(share, length) == pytest.approx(together(share, length, 0) ** 0.5, rel=1e-6)


@given(SHARES, LENGTHS)
def test_means_are_worth_less_the_more_they_are_like_the_ones_before(share: float, length: int) -> None:
    variance = together(share, length, 0)
    alike = sum((together(share, length, length * n) / variance) ** 2 for n in range(1, 400 // length + 2))
    assert worth_of_means(share, length) == pytest.approx(1 / (1 + 2 * alike), rel=1e-3)


def test_means_of_white_noise_are_worth_one_each_and_shrink_by_the_root() -> None:
    assert worth_of_means(0.0, 8) == 1.0
    assert spread_of_means(0.0, 16) == pytest.approx(0.25)
