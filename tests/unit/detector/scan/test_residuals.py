import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.detector.domain.scan.residual.peers import centres_of_peers
from evenkeel.services.detector.domain.scan.residual.residuals import NUM_TO_BEGIN, RENEWED_EVERY, Residuals

_NUMBERS = st.one_of(st.floats(-3, 3), st.just(float("nan")))


@given(st.lists(st.tuples(_NUMBERS, st.booleans()), min_size=1, max_size=12), st.floats(0, 2))
def test_the_centre_of_a_row_is_the_mean_of_its_healthy_others_as_near_their_lower_middle_as_they_reach(
    rows: list[tuple[float, bool]], reach: float
) -> None:
    values, healthy = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    found, nearest = centres_of_peers(values, healthy, reach), centres_of_peers(values, healthy)
    for row in range(len(rows)):
        others = sorted(v for at, (v, ok) in enumerate(rows) if ok and at != row and np.isfinite(v))
        if others:
            middle = others[(len(others) - 1) // 2]
            assert nearest[row] == middle
            assert found[row] == pytest.approx(np.mean(np.clip(others, middle - reach, middle + reach)))
        else:
            assert np.isnan(found[row])


def _followed(frames: np.ndarray) -> Residuals:
    """Residuals of one clock, with nobody ill and nothing suspicious."""
    residuals, num_devices = Residuals.of_shape(1, frames.shape[1]), frames.shape[1]
    nobody = np.zeros(num_devices, dtype=np.bool_)
    scales = np.full((1, num_devices), 0.05)
    for frame in frames:
        begun = residuals.observe(frame[None, :], nobody, np.zeros((1, num_devices)), scales)
        if begun.any():
            residuals.begin(begun, nobody)
        elif residuals.num_frames > NUM_TO_BEGIN and residuals.num_frames % RENEWED_EVERY == 0:
            residuals.renew(~nobody[None, :], nobody[None, :], scales, np.ones((1, num_devices)))
    return residuals


@pytest.mark.parametrize("num_devices", [2, 3, 4, 8])
def test_what_differs_by_nature_and_what_befalls_all_is_in_no_residual(num_devices: int) -> None:
    rng = np.random.default_rng(num_devices)
    common = np.cumsum(0.01 * rng.standard_normal(300))
    frames = common[:, None] + np.linspace(-0.1, 0.1, num_devices) + 0.02 * rng.standard_normal((300, num_devices))
    newest = _followed(frames).newest(32)[:, 0]
    assert newest.mean(axis=0).max() < 0.04


@pytest.mark.parametrize("num_devices", [3, 4, 5, 9])
def test_healthy_devices_stand_at_none_however_many_there_are(num_devices: int) -> None:
    frames = 0.05 * np.random.default_rng(num_devices).standard_normal((300, num_devices))
    assert abs(_followed(frames).newest(64).mean()) < 0.15 * 0.05


def test_an_offset_that_is_known_follows_a_creep_by_three_per_cent_only() -> None:
    rng = np.random.default_rng(0)
    frames = 0.02 * rng.standard_normal((2400, 4))
    frames[400:, 2] += np.minimum(np.arange(2000) * 2e-4, 0.2)
    # Its peers seem to become faster by as much as it is believed to be slower by nature.
    assert _followed(frames).newest(32)[:, 0, 2].mean() > 0.2 - 2 * 0.03 - 0.01


def test_of_two_that_share_a_host_the_one_that_gains_does_not_accuse_the_other() -> None:
    rng = np.random.default_rng(3)
    frames = 0.1 * rng.standard_normal((300, 2))
    frames[280:, 0] -= 0.5
    assert _followed(frames).newest(16)[:, 0, 1].mean() < 0.15
    frames[280:, 0] += 1.0
    assert _followed(frames).newest(16)[:, 0, 0].mean() > 0.35


def test_a_row_without_peers_is_compared_with_its_own_past() -> None:
    frames = np.concatenate([np.zeros((200, 1)), np.full((8, 1), 0.3)])
    assert _followed(frames).newest(4)[:, 0, 0].mean() == pytest.approx(0.3, abs=0.03)


def test_who_did_not_report_is_neither_slow_nor_fast() -> None:
    frames = np.zeros((60, 3))
    frames[40:, 1] = np.nan
    newest = _followed(frames).newest(8)[:, 0]
    assert np.isnan(newest[:, 1]).all()
    assert np.abs(newest[:, [0, 2]]).max() < 1e-9


@pytest.mark.parametrize("num_devices", [2, 4])
def test_who_is_slow_does_not_hide_behind_a_slow_start_of_all(num_devices: int) -> None:
    frames = 0.03 * np.random.default_rng(num_devices).standard_normal((160, num_devices))
    frames[:64] += 0.9
    assert np.abs(_followed(frames).newest(64).mean(axis=0)).max() < 0.05, "all became faster: nobody is apart"
    frames[96:, 1] += 0.5
    assert _followed(frames).newest(64)[:, 0, 1].mean() > 0.4


def test_a_table_whose_rows_have_all_gone_is_empty() -> None:
    residuals = _followed(np.zeros((20, 2)))
    residuals.arrange(np.zeros(0, dtype=np.int64))
    assert residuals.newest(8).shape == (8, 1, 0)
