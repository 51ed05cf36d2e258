"""What befalls all replicas of a stage at once is the stage's; what befalls some of them is theirs."""

import numpy as np
import numpy.typing as npt
import pytest

from evenkeel.offline.operations.stage_work import StageWork, stage_work

_STEPS = np.arange(100, 170)
_NUM = len(_STEPS)


def seconds(*slower: tuple[int, int, int, int, float], noise: float = 0.01) -> npt.NDArray[np.float64]:
    """Computations of three replicas of two stages; (stage, replica or -1, first, last, times) each."""
    made = np.exp(noise * np.random.default_rng(5).standard_normal((_NUM, 3, 2)))
    for stage, replica, first, last, times in slower:
        made[first : last + 1, slice(None) if replica < 0 else replica, stage] *= times
    return made.reshape(_NUM, 6)


def work_of(made: npt.NDArray[np.float64]) -> StageWork:
    return stage_work(made, np.array([0, 1] * 3), _STEPS, num_first=8)


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.04])
@pytest.mark.parametrize(("first", "last"), [(9, 69), (30, 69), (30, 44), (66, 69)])
def test_a_stage_that_is_heavier_in_all_replicas_has_more_work(noise: float, first: int, last: int) -> None:
    found = work_of(seconds((1, -1, first, last, 1.3), noise=noise)).factors
    heavier = np.ones((_NUM, 2))
    heavier[first : last + 1, 1] = 1.3
    assert found == pytest.approx(heavier, rel=2.5 * noise)


@pytest.mark.parametrize(
    "slower",
    [
        [(1, 0, 30, 69, 1.3)],
        [(1, 0, 30, 69, 1.3), (1, 2, 30, 69, 1.3)],
        [(1, 0, 20, 69, 1.3), (1, 1, 35, 69, 1.3), (1, 2, 50, 69, 1.3)],
        [(1, 0, 20, 69, 1.3), (1, 1, 23, 69, 1.3), (1, 2, 26, 69, 1.3)],
    ],
    ids=["one", "some at once", "all, one after the other", "all, soon after one another"],
)
def test_slow_devices_are_no_work(slower: list[tuple[int, int, int, int, float]]) -> None:
    found = work_of(seconds(*slower))
    assert found.factors == pytest.approx(1.0, abs=0.02)
    assert found.notes == ()


def test_a_slow_device_on_a_stage_that_became_heavier_keeps_its_own_part() -> None:
    found = work_of(seconds((1, -1, 30, 69, 1.2), (1, 0, 30, 69, 1.2), (1, 1, 50, 69, 1.5))).factors
    assert found[:30] == pytest.approx(1.0, abs=0.02)
    assert found[30:, 1] == pytest.approx(1.2, abs=0.03)


def test_lone_steps_that_are_heavier_are_followed() -> None:
    made = seconds()
    made[::5, 1::2] *= 1.5
    assert work_of(made).factors[5::5, 1] == pytest.approx(1.5, rel=0.04)
    made = seconds()
    made[21::2, 1::2] *= 1.5
    assert work_of(made).factors[21::2, 1] == pytest.approx(1.5, rel=0.04)


def test_what_all_stages_do_is_no_stages_work() -> None:
    assert work_of(seconds((0, -1, 30, 69, 1.3), (1, -1, 30, 69, 1.3))).factors == pytest.approx(1.0, abs=0.02)


def test_the_note_says_which_stage_from_when_and_for_how_long() -> None:
    (note,) = work_of(seconds((1, -1, 30, 44, 1.3))).notes
    assert note.startswith("stage 1 computes 30% longer from step 130 to 144, in all 3 replicas at once")


def test_a_step_that_a_worker_lacks_changes_nothing() -> None:
    made = seconds((1, -1, 30, 69, 1.3))
    made[[0, 31, 50], [1, 3, 5]] = np.nan
    assert work_of(made).factors[32:, 1] == pytest.approx(1.3, abs=0.04)


def test_a_stage_of_one_worker_is_not_judged() -> None:
    made = seconds((1, -1, 30, 69, 1.3))[:, :2]
    assert (stage_work(made, np.array([0, 1]), _STEPS, num_first=8).factors == 1.0).all()
