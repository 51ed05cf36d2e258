import numpy as np

from evenkeel.offline.series.pauses import Pauses, set_apart


def test_lone_pauses_are_set_apart_and_counted() -> None:
    residuals = 0.01 * np.random.default_rng(0).standard_normal(128)
    at = np.array([10, 40, 77, 100])
    residuals[at] += 0.5
    body, pauses = set_apart(residuals)
    assert np.flatnonzero(np.isnan(body)).tolist() == at.tolist()
    assert 4 / 128 < pauses.share < 4 * 4 / 128


def test_pauses_that_come_in_rows_are_expected_to_go_on() -> None:
    alone, in_rows = (0.01 * np.random.default_rng(1).standard_normal(128) for _ in range(2))
    alone[[10, 30, 50, 70, 90, 110]] += 0.5
    in_rows[[10, 11, 50, 70, 90, 110]] += 0.5
    assert set_apart(in_rows)[1].share > 2 * set_apart(alone)[1].share


def test_a_stall_of_a_few_iterations_is_set_apart_and_not_taken_for_noise() -> None:
    residuals = 0.01 * np.random.default_rng(3).standard_normal(128)
    residuals[60:64] += 0.4
    body, pauses = set_apart(residuals)
    assert np.flatnonzero(np.isnan(body)).tolist() == [60, 61, 62, 63]
    assert pauses.share == 0.2


def test_noise_with_two_modes_stays_as_it_is() -> None:
    rng = np.random.default_rng(2)
    residuals = 0.003 * rng.standard_normal(128) + 0.1 * (rng.random(128) < 0.25)
    body, _ = set_apart(residuals)
    assert np.isfinite(body).all()


def test_gaps_stay_gaps_and_nothing_is_known_of_nothing() -> None:
    gaps = np.array([0.0, np.nan, 0.01, np.nan, -0.01])
    assert np.isnan(set_apart(gaps)[0]).tolist() == np.isnan(gaps).tolist()
    assert set_apart(np.full(4, np.nan))[1] == Pauses()
