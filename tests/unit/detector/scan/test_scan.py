import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evenkeel.services.detector.domain.scan.budget import Budget
from evenkeel.services.detector.domain.scan.level import level_of, level_since_onset, scatter_of
from evenkeel.services.detector.domain.scan.recovery import has_recovered
from evenkeel.services.detector.domain.scan.widths import FRAMES_OF_A_BASKET, Widths
from evenkeel.services.detector.domain.scan.windows import LENGTHS, Windows


@given(st.integers(1, 400), st.integers(0, 2**31))
def test_windows_are_sums_of_the_newest_frames(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((count, 2, 3))
    windows = Windows.of_shape(2, 3)
    for frame in range(count):
        for place, sums in windows.push(values[frame]):
            assert (frame + 1) % (1 << place) == 0
            newest = values[max(frame + 1 - LENGTHS[place], 0) : frame + 1]
            np.testing.assert_allclose(sums, newest.sum(axis=0), atol=1e-9)
            assert windows.are_whole(place).all() == (frame + 1 >= LENGTHS[place])


def test_a_row_that_begins_anew_has_no_windows_until_they_are_whole_again() -> None:
    windows = Windows.of_shape(1, 2)
    for _ in range(20):
        list(windows.push(np.ones((1, 2))))
    windows.begin_anew(np.array([[False, True]]))
    for _ in range(8):
        seen = dict(windows.push(np.ones((1, 2))))
    assert seen[0].tolist() == [[8.0, 8.0]]
    assert windows.are_whole(0).tolist() == [[True, True]]
    assert windows.are_whole(1).tolist() == [[True, False]]


def test_a_budget_is_shared_among_rows_lengths_and_looks() -> None:
    budget = Budget(iterations_per_false_alarm=1e4, num_rows=6)
    widths = Widths.of_shape(1, 6)
    widths.widths[:], widths.spreads[:], widths.tails[:] = 1.3, 1e-9, 1e-9
    expected = 0.0
    heights = budget.of_verdict(widths)
    for height, length in zip(heights[0], LENGTHS, strict=True):
        expected += 6 * stats.norm.sf(height / 1.3) / (length / 8)
    assert expected == pytest.approx(1e-4, rel=0.01)
    assert (budget.of_suspicion(widths) < heights).all()
    for unsure in (widths.spreads, widths.tails):
        unsure[:] = 0.1
        assert (budget.of_verdict(widths) > heights).all()
        unsure[:] = 1e-9


def test_what_must_be_exceeded_follows_the_farthest_healthy_window_where_tails_are_heavy() -> None:
    rng = np.random.default_rng(7)
    calm = rng.standard_normal((8000, 2))
    odd = calm.copy()
    odd[rng.random(8000) < 0.002] += 15.0
    budget = Budget(iterations_per_false_alarm=1e5, num_rows=2)
    heights = {name: budget.of_verdict(_learned(noise))[0, 0] for name, noise in (("calm", calm), ("odd", odd))}
    widths = _learned(odd)
    by_width = widths.widths[0, 0] * heights["calm"]
    assert heights["odd"] > max(1.1 * by_width, 1.2 * widths.farthest[0, 0])
    assert 4.5 < heights["calm"] < 6


def _learned(noise: np.ndarray) -> Widths:
    widths, windows = Widths.of_shape(1, noise.shape[1]), Windows.of_shape(1, noise.shape[1])
    for frame, values in enumerate(noise, 1):
        if frame % FRAMES_OF_A_BASKET == 0:
            widths.release(frame, is_quiet=True)
        for place, sums in windows.push(values[None, :]):
            if frame % LENGTHS[place] == 0:
                widths.see(frame, place, sums / math.sqrt(LENGTHS[place]), windows.are_whole(place))
    widths.renew(np.zeros(1), 64)
    return widths


def test_independent_noise_is_as_wide_as_it_should_be_and_wandering_noise_wider() -> None:
    rng = np.random.default_rng(1)
    white = rng.standard_normal((8000, 4))
    np.testing.assert_allclose(_learned(white).widths[0, :5], 1.0, rtol=0.15)
    wandering = np.zeros_like(white)
    for frame in range(1, len(white)):
        wandering[frame] = 0.9 * wandering[frame - 1] + math.sqrt(1 - 0.81) * white[frame]
    for place, length in enumerate(LENGTHS[:5]):
        sums = wandering[: len(wandering) // length * length].reshape(-1, length, 4).sum(axis=1)
        assert _learned(wandering).widths[0, place] == pytest.approx(sums.std() / math.sqrt(length), rel=0.2)


def test_the_longer_the_windows_the_less_is_known_of_them() -> None:
    widths = _learned(np.random.default_rng(2).standard_normal((400, 2)))
    assert (np.diff(widths.spreads[0]) > 0).all()
    assert (np.diff(widths.widths[0, 4:]) > 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_few_light_windows_do_not_say_that_tails_fall_sooner_than_chance_makes_them_fall(seed: int) -> None:
    rng = np.random.default_rng(seed)
    often_blocked = np.where(rng.random((200, 8)) < 0.15, 6.8, 0.1 * rng.standard_normal((200, 8)))
    tails = _learned(often_blocked).tails[0]
    assert (tails[1:] >= tails[:-1] / 2).all()


def test_what_turns_out_to_be_illness_is_not_learned() -> None:
    rng = np.random.default_rng(5)
    widths = Widths.of_shape(1, 2)
    for frame in range(8, 801, 8):
        if frame % FRAMES_OF_A_BASKET == 0:
            widths.release(frame, is_quiet=True)
        far = 8.0 if frame > 760 else 0.0
        widths.see(frame, 0, rng.standard_normal((1, 2)) + far, np.ones((1, 2), dtype=np.bool_))
    widths.drop(800, 48)
    for frame in range(816, 2000, FRAMES_OF_A_BASKET):
        widths.release(frame, is_quiet=True)
    assert widths.farthest[0, 0] < 5


@pytest.mark.parametrize(("level", "since"), [(0.3, 8), (1.0, 4), (0.1, 40)])
def test_a_level_is_what_it_is_since_its_onset(level: float, since: int) -> None:
    residuals = 0.03 * np.random.default_rng(1).standard_normal(64)
    residuals[-since:] += level
    residuals[3] = np.nan
    found = level_since_onset(residuals, middle=level)
    assert found.level == pytest.approx(level, abs=0.03)
    assert found.num_frames == pytest.approx(since, abs=2)


def test_noise_that_hides_half_of_a_level_keeps_nobody_ill_who_shows_nothing_for_long() -> None:
    residuals = 0.3 * np.random.default_rng(3).standard_normal(64)
    found = has_recovered(residuals, level=0.1, scale=0.36, num_relapses=0, smallest=0.045)
    assert found
    assert not has_recovered(residuals + 0.3, level=0.1, scale=0.36, num_relapses=0, smallest=0.045)


def test_who_takes_three_times_as_long_in_every_other_frame_has_half_of_its_throughput() -> None:
    assert level_of(np.tile([0.0, np.log(3.0)], 32)).level == pytest.approx(np.log(2.0))


def test_frames_that_are_like_their_neighbours_scatter_as_much_as_their_means_do() -> None:
    means = 0.2 * np.random.default_rng(2).standard_normal(16)
    assert scatter_of(np.repeat(means, 4)) == pytest.approx(2 * 0.2, rel=0.5)


def test_a_change_of_level_is_no_scatter() -> None:
    noise = 0.02 * np.random.default_rng(2).standard_normal(64)
    assert scatter_of(noise + np.repeat([0.7, 0.0], 32)) < 0.1


def test_a_lone_pause_is_no_level() -> None:
    residuals = 0.2 + 0.01 * np.random.default_rng(1).standard_normal(64)
    residuals[10] = 5.0
    assert level_of(residuals).level == pytest.approx(0.2, abs=0.1)


@pytest.mark.parametrize(
    ("now", "scale", "recovered"), [(0.0, 0.02, True), (0.3, 0.02, False), (0.0, 0.4, False), (0.05, 0.02, True)]
)
def test_who_is_clearly_below_half_of_its_level_has_recovered(now: float, scale: float, recovered: bool) -> None:
    residuals = np.concatenate([np.full(52, 0.3), np.full(12, now)]) + 0.01 * np.random.default_rng(4).standard_normal(
        64
    )
    found = has_recovered(residuals, level=0.3, scale=scale, num_relapses=0, smallest=0.045)
    assert found == recovered
