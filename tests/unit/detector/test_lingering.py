"""A jump that fades is no illness, however large; a device that became slow shows something new in each iteration."""

import numpy as np
import pytest

from evenkeel.services.detector.domain.lingering import Lingering
from evenkeel.services.detector.domain.noise import Noise
from tests.unit.detector.synthetic import wandering

WINDOW, EVERY = 48, 8


def remembered(noise: np.ndarray) -> Lingering:
    lingering = Lingering()
    for stop in range(WINDOW, len(noise) + 1, EVERY):
        lingering.remember(noise[stop - WINDOW : stop].T, scale=0.03, num_new=EVERY)
    return lingering


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_is_left_of_a_residual_is_known_after_a_while(correlation: float, count: int) -> None:
    noise = wandering(0.03, correlation)(np.random.default_rng(1), (1_200, count))
    assert remembered(noise).share == pytest.approx(correlation, abs=0.1)
    assert remembered(noise[: WINDOW - 1]).share is None


def test_the_centre_of_a_frame_says_nothing_of_its_noise() -> None:
    noise = wandering(0.03, 0.8)(np.random.default_rng(2), (1_200, 2))
    shown = np.column_stack([noise, np.zeros(1_200)])
    assert remembered(shown).share == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("jump", [0.2, 0.5, 2.0])
@pytest.mark.parametrize("correlation", [0.5, 0.8])
def test_a_jump_that_fades_as_noise_does_is_explained_and_a_lasting_shift_is_not(
    jump: float, correlation: float
) -> None:
    lingering = remembered(wandering(0.01, correlation)(np.random.default_rng(3), (1_200, 2)))
    fading = jump * correlation ** np.arange(8)
    explained = [lingering.could_explain(shown, noise=Noise(), strays=5.0) for shown in (fading, np.full(8, jump))]
    assert explained == [True, False]


def test_a_single_residual_may_always_be_a_jump() -> None:
    assert Lingering().could_explain(np.array([3.0]), noise=Noise(), strays=5.0)


def test_while_little_is_known_noise_may_linger_more_than_it_seems() -> None:
    noise = Noise(scale=0.03, correlation=0.2)
    assert Lingering().could_explain(np.full(6, 0.1), noise=noise, strays=6.0)
    assert not Lingering().could_explain(np.full(6, 0.6), noise=noise, strays=6.0)
