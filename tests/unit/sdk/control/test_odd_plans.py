"""What a controller that is out of its mind asks of a rank: refused in words, and the rank takes the next real plan."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState, StandIn
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.refusals import StaleBallotError
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape, commit_from_proto
from tests.fakes.plan_messages import commit_to_proto

LAYOUT = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=1, num_micro_batches=2)
TRAINING = RankState(rank=1, incarnation=0, phase=RankPhase.TRAINING, epoch=3, iteration=5, steps_applied=5)


def at_work() -> Mailbox:
    box = Mailbox(rank=1)
    box.publish(TRAINING)
    return box


def commit(epoch: int, mode: ApplyMode, *, plan_id: str = "plan", sources: tuple[int, ...] = (0, 1)) -> Commit:
    reshape = Reshape(job_id="job", plan_id=plan_id, epoch=epoch, mode=mode, to_layout=LAYOUT)
    steps = 5 if mode is ApplyMode.RECOVER else -1
    return Commit(reshape=reshape, from_epoch=3, from_layout=LAYOUT, sources=sources, steps_applied=steps)


def takes_a_real_plan(box: Mailbox) -> None:
    """The rank goes over to epoch 4 at its next boundary, and trains on under it uninterrupted."""
    real = commit(4, ApplyMode.BOUNDARY, plan_id="real")
    box.prepare(real.reshape, 0.0)
    box.commit(real)
    with box.switching(4) as handed_over:
        assert handed_over == real
        box.publish(replace(TRAINING, epoch=4))
    assert not box.interrupted()


@pytest.mark.parametrize(
    "ask",
    [
        lambda box, epoch: box.prepare(commit(epoch, ApplyMode.BOUNDARY).reshape, 0.0),
        lambda box, epoch: box.prepare(commit(epoch, ApplyMode.RECOVER).reshape, 0.0),
        lambda box, epoch: box.commit(commit(epoch, ApplyMode.BOUNDARY)),
        lambda box, epoch: box.commit(commit(epoch, ApplyMode.RECOVER)),
        lambda box, epoch: box.abort("plan", Ballot(0, epoch)),
    ],
)
def test_an_epoch_that_no_plan_can_have_is_refused_and_leaves_no_trace(ask: Callable[[Mailbox, int], object]) -> None:
    box = at_work()
    for epoch in (2_000_000, 2**62):
        with pytest.raises(ValueError, match="beyond epoch 3 of rank 1"):
            ask(box, epoch)
    assert not box.interrupted()
    takes_a_real_plan(box)


def test_an_epoch_that_is_just_not_too_far_is_taken() -> None:
    assert at_work().prepare(commit(1_000_003, ApplyMode.BOUNDARY).reshape, 0.0).promised.epoch == 1_000_003


def test_an_interrupt_for_an_epoch_that_is_far_away_ends_with_the_epoch_that_it_met() -> None:
    box = at_work()
    box.interrupt(2**62, leave=False)
    assert box.interrupted()
    box.publish(RankState(rank=1, incarnation=0, phase=RankPhase.PARKED, epoch=3, iteration=5, steps_applied=5))
    box.commit(commit(4, ApplyMode.RECOVER))
    with box.switching() as handed_over:
        assert handed_over is not None
        box.publish(replace(TRAINING, epoch=4))
    assert not box.interrupted()


_EPOCHS = st.sampled_from([-(2**62), -1, 0, 3, 1_000_004, 2**62])
_ASKS = st.sampled_from(["prepare", "commit", "abort", "interrupt"])


@given(st.lists(st.tuples(_ASKS, _EPOCHS, st.sampled_from(list(ApplyMode)), st.sampled_from(["a", "b"]))))
def test_whatever_is_refused_changes_nothing(asks: list[tuple[str, int, ApplyMode, str]]) -> None:
    box = at_work()
    before = box.state
    for what, epoch, mode, plan_id in asks:
        asked = commit(epoch, mode, plan_id=plan_id)
        try:
            if what == "prepare":
                box.prepare(asked.reshape, 0.0)
            elif what == "commit":
                box.commit(asked)
            elif what == "abort":
                box.abort(plan_id, Ballot(0, epoch))
                continue
            elif epoch < 3:
                box.interrupt(epoch, leave=True)
            else:
                continue
        except (StaleBallotError, ValueError):
            assert box.state == before
            assert not box.interrupted()
            assert not box.leaving()
        else:
            pytest.fail(f"{what} of epoch {epoch} was taken")
    takes_a_real_plan(box)


@pytest.mark.parametrize(
    ("sources", "stand_ins"), [((), ()), ((0, 99), ()), ((0,), (StandIn(owner=99, keeper=0),)), ((-1,), ())]
)
def test_a_commit_that_reads_from_strangers_or_from_nobody_is_refused_by_name(
    sources: tuple[int, ...], stand_ins: tuple[StandIn, ...]
) -> None:
    message = commit_to_proto(commit(4, ApplyMode.RECOVER, sources=sources))
    for one in stand_ins:
        message.stand_ins.add(owner=one.owner, keeper=one.keeper)
    with pytest.raises(ValueError, match=r"epoch 3 is that of ranks \[0, 1\]"):
        commit_from_proto(message)
