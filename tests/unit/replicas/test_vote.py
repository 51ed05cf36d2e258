"""What a vote sums up."""

from math import nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.replicas.vote import Outcome, Said, ballot, is_compared

SAID = st.builds(
    Said,
    next_epoch=st.integers(0, 1 << 40),
    complete=st.booleans(),
    num_units=st.integers(0, 1 << 30),
    settings=st.floats(-1e6, 1e6),
    sample=st.floats(-1e6, 1e6),
)


@given(st.lists(st.tuples(SAID, st.lists(st.booleans(), min_size=3, max_size=3)), min_size=1, max_size=5))
def test_everybody_is_heard(voters: list[tuple[Said, list[bool]]]) -> None:
    ballots = [
        ballot(
            float(place),
            torch.tensor(2.0 * place),
            used,
            [
                each._replace(num_units=0) if at == place else Said(num_units=each.num_units * (at == place + 1))
                for at, (each, _) in enumerate(voters)
            ],
        )
        for place, (_, used) in enumerate(voters)
    ]
    numbers = torch.stack(ballots).sum(0).tolist()
    replicas = [10 + place for place in range(len(voters))]
    outcome = Outcome.of(numbers, 3, replicas)
    said = {replica: said for replica, (said, _) in zip(replicas, voters, strict=True)}
    assert outcome.said == {**said, 10: said[10]._replace(num_units=0)}  # the first has nobody before it
    assert outcome.weight == sum(range(len(voters)))
    assert outcome.loss == 2 * outcome.weight
    assert outcome.used == tuple(any(used[index] for _, used in voters) for index in range(3))
    assert Outcome.of(numbers, 3).used == outcome.used


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ((0.5, 3.0), (0.5, 3.0), None),
        ((0.5, 3.0), (0.0, 0.0), None),  # of theirs nothing is known
        ((0.5, nan), (0.5, nan), None),
        ((0.4, 3.0), (0.5, 3.0), "give schedules to"),
        ((0.5, 3.001), (0.5, 3.0), "parameters here are not those of the others in step 7"),
        ((0.5, nan), (0.5, 3.0), "parameters here"),
    ],
)
@pytest.mark.parametrize("proven", [(1, 3), (0, 1, 2)])
def test_who_parts_from_most_others_is_told_why(
    mine: tuple[float, float], theirs: tuple[float, float], told: str | None, proven: tuple[int, ...]
) -> None:
    said = {number: Said(1, True, 0, *numbers) for number, numbers in enumerate((mine, theirs, theirs))}
    outcome = Outcome(weight=1.0, loss=1.0, used=(), said=said)
    outcome.check_alike(1, proven, step=7)
    if told is None:
        outcome.check_alike(0, proven, step=7)
    else:
        with pytest.raises(RuntimeError, match=told):
            outcome.check_alike(0, proven, step=7)


def test_of_two_that_differ_the_first_that_is_proven_goes_on() -> None:
    outcome = Outcome(weight=1.0, loss=1.0, used=(), said={each: Said(1, True, 0, 1.0 + each) for each in (0, 1)})
    outcome.check_alike(0, (0, 1), step=7)
    with pytest.raises(RuntimeError, match="not those of the others in step 7"):
        outcome.check_alike(1, (0, 1), step=7)
    with pytest.raises(RuntimeError, match="not those of the others in step 7"):
        outcome.check_alike(0, (1,), step=7)


def test_of_two_that_differ_one_without_numbers_does_not_go_on() -> None:
    said = {0: Said(1, True, 0, 1.0, nan), 1: Said(1, True, 0, 1.0, 3.0)}
    outcome = Outcome(weight=1.0, loss=1.0, used=(), said=said)
    outcome.check_alike(1, (0, 1), step=7)
    with pytest.raises(RuntimeError, match="parameters here"):
        outcome.check_alike(0, (0, 1), step=7)


def test_parameters_are_compared_early_and_then_now_and_again_wherever_a_job_goes_on() -> None:
    assert [step for step in range(20) if is_compared(step)] == [1, 2, 4, 8, 16]
    assert any(is_compared(step) for step in range(50_000, 51_024))
