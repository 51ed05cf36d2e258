import numpy as np
import pytest

from evenkeel.services.detector.domain.scan.noise import RowNoise
from evenkeel.services.detector.domain.scan.residual.recent import KEPT
from evenkeel.services.detector.domain.scan.residual.residuals import RENEWED_EVERY
from evenkeel.services.detector.domain.scan.residual.tables import median
from evenkeel.services.detector.domain.scan.rows import RowScan

EVERYBODY = np.ones((1, 4), dtype=np.bool_)
BEGIN = 160


def learned(residuals: np.ndarray) -> RowNoise:
    noise = RowNoise.of(np.array([0.005]), residuals.shape[2])
    for frame in range(RENEWED_EVERY, len(residuals) + 1, RENEWED_EVERY):
        newest = residuals[max(frame - KEPT, 0) : frame]
        noise.renew(frame, newest - median(newest), calm=EVERYBODY, known=EVERYBODY)
    return noise


def test_the_first_frames_of_an_illness_that_nobody_suspects_yet_are_no_noise() -> None:
    residuals = 0.1 * np.random.default_rng(3).standard_normal((BEGIN + KEPT // 4, 1, 4))
    healthy = learned(residuals)
    residuals[BEGIN:, 0, 1] += 0.5
    with_illness = learned(residuals)
    # All are seen around the median of frames that some of the illness is among.
    np.testing.assert_allclose(with_illness.scales, healthy.scales, rtol=0.02)
    np.testing.assert_allclose(with_illness.alike, healthy.alike, atol=0.02)


def test_what_noise_is_like_is_learned_all_the_same_where_it_stays_so() -> None:
    rng = np.random.default_rng(4)
    residuals = 0.1 * rng.standard_normal((1024, 1, 4))
    for frame in range(257, 1024):
        residuals[frame] = 0.8 * residuals[frame - 1] + 0.1 * rng.standard_normal((1, 4))
    noise = learned(residuals)
    assert 0.6 < noise.alike[0] < 0.9
    assert noise.scales.mean() > 0.13


def test_where_nobody_is_calm_nothing_is_learned() -> None:
    residuals = 0.1 * np.random.default_rng(5).standard_normal((40, 1, 4))
    noise = learned(residuals[:24])
    alike = noise.alike.copy()
    for frame in (32, 40):
        noise.renew(frame, residuals[:frame], calm=~EVERYBODY, known=EVERYBODY)
    np.testing.assert_array_equal(noise.alike, alike)


def test_one_that_was_stored_before_it_kept_what_likeness_rests_on_goes_on() -> None:
    residuals = 0.1 * np.random.default_rng(6).standard_normal((168, 1, 4))
    noise = learned(residuals[:160])
    noise.num_seen, noise._products = 0, np.zeros((2, 0))
    noise.renew(168, residuals[-KEPT:], calm=EVERYBODY, known=EVERYBODY)
    assert 0 <= noise.alike[0] < 0.3


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize(("size", "begin"), [(0.2, 20), (0.1, 28)])
def test_an_illness_of_a_young_job_that_leaves_nobody_calm_is_found(num_devices: int, size: float, begin: int) -> None:
    for seed in range(6):
        rows, rng = RowScan(1e5, smallest_level=0.03), np.random.default_rng(seed)
        rows.allot(num_devices, np.array([0.002]))
        for frame in range(begin + 20):
            log_ratios = 0.01 * rng.standard_normal((1, num_devices))
            log_ratios[0, 0] += size * (frame >= begin)
            rows.observe(frame, log_ratios)
        assert rows.ill[0], f"seed {seed}"
