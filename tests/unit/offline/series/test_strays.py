"""How far a healthy series strays is known for longer than its window is."""

import numpy as np
import pytest

from evenkeel.offline.series.strays import Strays, without_trend
from tests.unit.detector.synthetic import wandering

WINDOW, EVERY = 48, 8


def remembered(noise: np.ndarray, scale: float) -> Strays:
    strays = Strays()
    for stop in range(WINDOW, len(noise) + 1, EVERY):
        strays.remember(noise[stop - WINDOW : stop], scale=scale, num_new=EVERY)
    return strays


@pytest.mark.parametrize("correlation", [0.0, 0.8, 0.95])
@pytest.mark.parametrize("length", [4, 8, 16, 32])
def test_means_stray_as_far_as_they_do(correlation: float, length: int) -> None:
    noise = wandering(0.03, correlation)(np.random.default_rng(1), (12_000, 1))[:, 0]
    newest = noise[-2_000:]  # what is older is nearly forgotten
    means = np.lib.stride_tricks.sliding_window_view(newest, length).mean(axis=-1)
    usual, count = remembered(noise, 0.03).over(length)
    assert usual == pytest.approx(np.sqrt(np.mean(means**2)), rel=0.4)
    assert count <= 1024 / length


def test_means_over_more_iterations_stray_at_least_as_far_as_noise_that_is_forgotten_at_once() -> None:
    strays = remembered(np.random.default_rng(2).normal(0, 0.02, 800), 0.02)
    assert strays.over(4)[0] / np.sqrt(2) <= strays.over(8)[0] <= strays.over(4)[0]
    assert strays.over(5) == strays.over(4)
    assert strays.over(1_000) == strays.over(32)


def test_a_lone_outlier_is_no_excursion() -> None:
    noise = np.random.default_rng(3).normal(0, 0.01, 800)
    before = remembered(noise, 0.01).over(32)[0]
    noise[600] = 3.0
    assert remembered(noise, 0.01).over(32)[0] < 1.2 * before


def test_iterations_that_shall_not_count_leave_no_trace() -> None:
    assert remembered(np.full(WINDOW, np.nan), 0.01).over(8) == (0.0, 0.0)


def test_a_gap_hides_the_means_that_it_is_in_and_no_others() -> None:
    noise = np.random.default_rng(6).normal(0, 0.02, WINDOW)
    gaps = noise.copy()
    gaps[5] = np.nan  # within 8, 16 and 32 iterations, not within 4
    whole, some = remembered(noise, 0.02), remembered(gaps, 0.02)
    assert some._squares.tolist() == [whole._squares[0], 0.0, 0.0, 0.0]
    assert some._counts.tolist() == [whole._counts[0], 0.0, 0.0, 0.0]


def test_a_trend_is_taken_out_and_gaps_stay_gaps() -> None:
    window = 0.01 * np.arange(40.0) + np.tile([0.1, -0.1], 20)
    window[7] = np.nan
    found = without_trend(window)
    assert np.flatnonzero(np.isnan(found)).tolist() == [7]
    assert np.nanmax(np.abs(found)) == pytest.approx(0.1, abs=0.02)
