"""How far healthy devices strayed in their worst spells is known, and fades."""

import numpy as np
import pytest

from evenkeel.services.detector.domain.excursions import Excursions

WINDOW, EVERY = 48, 8


def remembered(noise: np.ndarray) -> Excursions:
    excursions = Excursions()
    for stop in range(WINDOW, len(noise) + 1, EVERY):
        excursions.remember(noise[stop - WINDOW : stop].T, scale=0.01, num_new=EVERY)
    return excursions


@pytest.mark.parametrize("start", range(200, 208))
def test_a_spell_is_remembered_wherever_it_begins(start: int) -> None:
    noise = np.zeros((400, 2))
    noise[start : start + 8, 1] = -0.05
    excursions = remembered(noise)
    assert excursions.reach(4) == pytest.approx(2 * 0.05, rel=0.05)
    assert excursions.reach(8) == pytest.approx(2 * 0.05, rel=0.05)
    assert excursions.reach(16) == pytest.approx(2 * 0.025, rel=0.05)
    assert excursions.reach(2) == 2 * excursions.reach(4)


def test_a_spell_fades_once_it_is_long_ago() -> None:
    noise = np.zeros((4_400, 1))
    noise[100:104] = 0.05
    assert remembered(noise).reach(4) < 0.5 * remembered(noise[:400]).reach(4)


def test_iterations_that_shall_not_count_leave_no_trace() -> None:
    assert remembered(np.full((WINDOW, 2), np.nan)).reach(8) == 0.0
    assert remembered(np.zeros((WINDOW, 0))).reach(8) == 0.0
