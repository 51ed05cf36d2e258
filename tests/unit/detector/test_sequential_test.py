"""The sequential test keeps its budget and needs more than one observation."""

import numpy as np
import pytest

from evenkeel.services.detector.domain import sequential_test as subject


def first_alarm(z: np.ndarray, scale: float, freedom: float, limit: float) -> int | None:
    sums, ages = np.zeros((1, subject.NUM_TESTS)), np.zeros((1, subject.NUM_TESTS), dtype=np.int64)
    for number, value in enumerate(z, 1):
        ratios = subject.log_ratios(np.array([value]), np.array([scale]), freedom)
        subject.advance(sums, ages, ratios, np.array([limit]))
        if sums.max() >= limit:
            return number
    return None


@pytest.mark.parametrize("scale", [0.003, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("freedom", [2.0, 3.0, 6.0])
def test_each_likelihood_ratio_has_a_mean_of_at_most_one_under_the_null(scale: float, freedom: float) -> None:
    z = np.linspace(-20, 20, 2_000_001)
    null = np.exp(subject.student_log_density(z, scale, freedom))
    ratios = np.exp(subject.log_ratios(z, np.full(len(z), scale), freedom))
    means = np.trapezoid(ratios * null[:, None], z, axis=0)
    assert means.max() <= 1.01


def test_healthy_noise_of_the_assumed_kind_crosses_less_often_than_the_budget() -> None:
    rng = np.random.default_rng(5)
    num_devices, num_iterations, limit = 2_000, 2_000, np.log(20_000.0)
    sums = np.zeros((num_devices, subject.NUM_TESTS))
    ages = np.zeros((num_devices, subject.NUM_TESTS), dtype=np.int64)
    scale, limits = np.full(num_devices, 0.02), np.full(num_devices, limit)
    alarms = 0
    for _ in range(num_iterations):
        z = 0.02 * rng.standard_t(3, num_devices)
        subject.advance(sums, ages, subject.log_ratios(z, scale, 3.0), limits)
        crossed = (sums >= limit).any(axis=1)
        alarms += int(crossed.sum())
        sums[crossed] = 0.0
        ages[crossed] = 0
    assert alarms <= subject.NUM_TESTS * num_devices * num_iterations / 20_000


@pytest.mark.parametrize("size", [0.3, 1.0, 5.0, 50.0])
def test_one_slow_step_accuses_nobody_however_slow(size: float) -> None:
    limit = subject.threshold(iterations_per_false_alarm=100_000, num_ranks=8)
    assert first_alarm(np.array([0.0, size, 0.0, 0.0, 0.0]), 0.01, 5.0, limit) is None


@pytest.mark.parametrize("size", [0.25, 0.7, 2.0])
def test_two_clearly_slow_steps_are_enough(size: float) -> None:
    limit = subject.threshold(iterations_per_false_alarm=100_000, num_ranks=8)
    assert first_alarm(np.full(5, size), 0.01, 5.0, limit) == 2


def test_the_threshold_grows_with_the_budget_and_the_number_of_ranks() -> None:
    small = subject.threshold(iterations_per_false_alarm=1_000, num_ranks=8)
    assert subject.threshold(iterations_per_false_alarm=100_000, num_ranks=8) > small
    assert subject.threshold(iterations_per_false_alarm=1_000, num_ranks=4_096) > small


def test_a_ratio_is_that_of_the_densities() -> None:
    rng = np.random.default_rng(7)
    scale, z = rng.uniform(0.003, 0.1, 9), rng.standard_t(3, 9) * 0.2
    ratios, null = subject.log_ratios(z, scale, 3.0), subject.student_log_density(z, scale, 3.0)
    for test, shift in enumerate(subject.SMALL_SHIFTS):
        shifted = subject.student_log_density(z - shift, scale, 3.0)
        assert ratios[:, test] == pytest.approx(shifted - null, rel=1e-9, abs=1e-9)
