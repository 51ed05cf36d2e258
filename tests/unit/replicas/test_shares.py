"""Who runs which micro-batches, and how a step goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.replicas.shares import (
    Standing,
    StateLostError,
    settle,
    share_out,
    standing_from_text,
    standing_to_text,
)

WEIGHTS = st.dictionaries(st.integers(0, 20), st.integers(0, 9), min_size=1).filter(lambda each: any(each.values()))


@given(st.sets(st.integers(0, 200)).map(sorted), WEIGHTS)
def test_each_micro_batch_goes_to_one_replica(micro_batches: list[int], weights: dict[int, int]) -> None:
    shares = share_out(micro_batches, weights)
    assert sorted(index for share in shares.values() for index in share) == micro_batches
    assert all(not shares[each] for each, weight in weights.items() if weight == 0)
    total = sum(weights.values())
    for each, share in shares.items():
        assert abs(len(share) - len(micro_batches) * weights[each] / total) < 1


@given(WEIGHTS)
def test_weights_that_add_up_are_counts(weights: dict[int, int]) -> None:
    shares = share_out(range(sum(weights.values())), weights)
    assert {each: len(share) for each, share in shares.items()} == weights


def test_somebody_must_have_weight() -> None:
    with pytest.raises(ValueError, match="some"):
        share_out([1, 2], {0: 0})


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[int, list[Standing]]:
    """Members of an epoch, some of whom have heard a vote that others have not."""
    num_micro_batches, step = draw(st.integers(1, 12)), draw(st.integers(0, 5))
    holders = draw(st.lists(st.integers(-1, 4), min_size=num_micro_batches, max_size=num_micro_batches))
    ahead = draw(st.lists(st.booleans(), min_size=5, max_size=5))
    standings = []
    for replica in range(5):
        done = tuple(index for index, holder in enumerate(holders) if holder == replica)
        mine = step + ahead[replica]
        standings.append(
            Standing(replica=replica, step=mine, done=done, last_vote=(float(mine),), complete=replica != 2)
        )
    return num_micro_batches, standings


@given(ledgers())
def test_sums_of_the_newest_step_count_once_and_no_others(case: tuple[int, list[Standing]]) -> None:
    num_micro_batches, standings = case
    settlement = settle(standings, num_micro_batches)
    kept = [index for each in standings if each.step == settlement.step for index in each.done]
    assert sorted([*kept, *settlement.missing]) == list(range(num_micro_batches))
    assert settlement.step == max(each.step for each in standings)
    assert settlement.last_vote == (float(settlement.step),)
    assert settlement.complete == (0, 1, 3, 4)


def test_what_somebody_heard_who_left_counts() -> None:
    behind = Standing(replica=0, step=3, done=(0, 1))
    settlement = settle([behind], 2, [Standing(replica=1, step=4, last_vote=(7.0,))])
    assert (settlement.step, settlement.last_vote, settlement.missing) == (4, (7.0,), (0, 1))


def test_without_a_whole_state_the_job_is_lost() -> None:
    with pytest.raises(StateLostError, match="checkpoint"):
        settle([Standing(replica=0, step=3, complete=False)], 2)


def test_a_standing_is_read_as_it_was_told() -> None:
    standing = Standing(replica=3, step=9, done=(1, 5), complete=False, num_units=4, last_vote=(0.1, 1 / 3))
    assert standing_from_text(standing_to_text(standing)) == standing
