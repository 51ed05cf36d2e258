"""What follows from the spells in which a device was slow."""

import pytest

from evenkeel.services.detector.domain.kinds.spell_course import SpellCourse


def course_of(*spells: tuple[float, float]) -> SpellCourse:
    course = SpellCourse(0)
    for first, stop in spells:
        course.begin(int(first), 0.5)
        course.spells[-1][1] = stop
    return course


@pytest.mark.parametrize(
    ("spells", "comes_and_goes"),
    [
        ([(100, 104)], False),
        ([(100, 104), (124, -1)], True),
        ([(100, 104), (125, -1)], False),
        ([(100, 104), (180, 190), (260, -1)], True),
        ([(100, 104), (180, 190), (261, -1)], False),
    ],
)
def test_so_many_onsets_so_close_together(spells: list[tuple[float, float]], comes_and_goes: bool) -> None:
    assert course_of(*spells).comes_and_goes() is comes_and_goes


@pytest.mark.parametrize(
    ("spells", "iteration", "outlasts"),
    [
        ([], 100, False),
        ([(100, -1)], 110, False),
        ([(100, -1)], 111, True),
        ([(100, 110), (120, -1)], 138, False),
        ([(100, 110), (120, -1)], 139, True),
        ([(100, 110), (120, 150)], 160, False),
    ],
)
def test_a_spell_outlasts_those_before(spells: list[tuple[float, float]], iteration: int, outlasts: bool) -> None:
    assert course_of(*spells).outlasts(iteration) is outlasts


def test_a_recovery_without_a_spell_and_spells_of_long_ago_are_forgotten() -> None:
    assert course_of().is_forgotten(0)
    assert not course_of((100, 110)).is_forgotten(260)
    assert course_of((100, 110)).is_forgotten(261)


def test_mean_time_counts_the_iterations_since_the_first_onset() -> None:
    share, throughput = course_of((100, 110), (120, -1)).duty(129)
    assert share == pytest.approx(20 / 30)
    assert throughput == pytest.approx(30 / (20 / 0.5 + 10))
