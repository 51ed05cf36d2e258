"""What lives and dies as one on a host: when it lives again."""

import pytest

from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED
from evenkeel.trainer_sdk.launcher.processes.unit import Unit


def live(unit: Unit, now: float) -> None:
    unit.begin(now)
    unit.alive = set(unit.ranks)


def test_the_first_life_is_due_at_once_and_one_that_lives_is_not() -> None:
    unit = Unit((3,))
    assert unit.is_due
    live(unit, 0.0)
    assert unit.incarnation == 0
    assert not unit.is_due
    assert not unit.has_finished


def test_a_replica_has_one_cause_of_its_end_and_has_finished_when_all_of_it_has() -> None:
    unit = Unit((4, 5, 6))
    live(unit, 0.0)
    assert [unit.ended(rank, status) for rank, status in ((5, 0), (4, 1), (6, -9))] == [False, True, False]
    assert not unit.has_finished
    live(unit, 1.0)
    assert [unit.ended(rank, 0) for rank in unit.ranks] == [False, False, False]
    assert unit.has_finished


def test_whoever_is_asked_for_lives_again_at_once_even_after_it_is_over() -> None:
    unit = Unit((0,))
    live(unit, 0.0)
    unit.ask_for(5.0)
    assert not unit.is_due, "it lives"
    unit.ended(0, -9)
    unit.is_over = True
    unit.ask_for(6.0)
    assert unit.is_due
    assert unit.due_at == 6.0
    live(unit, 6.0)
    assert not unit.is_asked_for


@pytest.mark.parametrize(("status", "third"), [(1, 0.2), (EXIT_EVICTED, 0.0)])
def test_who_ends_at_once_by_itself_again_and_again_waits_longer(status: int, third: float) -> None:
    unit = Unit((0,))
    for _ in range(3):
        live(unit, 10.0)
        unit.ended(0, status)
        unit.plan_restart(10.0, 0.0)
    assert unit.due_at == 10.0 + 2 * third
    live(unit, 10.0)
    unit.ended(0, status)
    unit.plan_restart(100.0, 0.0)
    assert unit.due_at == 100.0, "it has lived for long"


@pytest.mark.parametrize(
    ("unit", "delay_seconds", "due"),
    [
        (Unit((0,)), 2.0, [2, 4, 8, 16, 30, 30]),
        (Unit((0,)), 0.0, [0, 0.2, 0.4, 0.8, 1.6, 3.2]),
        (Unit((0,), longest_delay_seconds=1.0), 0.0, [0, 0.2, 0.4, 0.8, 1, 1]),
    ],
)
def test_one_that_dies_at_once_every_time_waits_longer_and_longer_up_to_a_limit(
    unit: Unit, delay_seconds: float, due: list[float]
) -> None:
    said = []
    for _ in due:
        live(unit, 0.0)
        unit.ended(0, 1)
        unit.plan_restart(0.0, delay_seconds)
        said.append(unit.due_at)
    assert said == due
