"""What a replica makes of the scheduler's plans."""

from dataclasses import replace

import pytest

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from evenkeel.trainer_sdk.replicas.membership.plans import Plans
from evenkeel.trainer_sdk.replicas.membership.roster import Quotas

HOME = replace(uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=3, num_micro_batches=6), whole=True)


def with_quotas(*quotas: int) -> Layout:
    replicas = zip(HOME.replicas, quotas, strict=False)
    return replace(HOME, replicas=tuple(replace(each, num_micro_batches=quota) for each, quota in replicas))


def commit_of(layout: Layout, epoch: int) -> Commit:
    reshape = Reshape(job_id="j", plan_id=f"p{epoch}", epoch=epoch, mode=ApplyMode.BOUNDARY, to_layout=layout)
    return Commit(reshape=reshape, from_epoch=epoch - 1, from_layout=HOME, sources=HOME.ranks)


@pytest.fixture
def mailbox() -> Mailbox:
    mailbox = Mailbox(1)
    mailbox.publish(replace(mailbox.state, phase=RankPhase.TRAINING, epoch=0))
    return mailbox


def test_a_plan_is_told_once_and_in_force_when_its_epoch_is_entered(mailbox: Mailbox) -> None:
    plans = Plans(mailbox, 6)
    assert plans.committed() is None
    mailbox.commit(commit_of(with_quotas(4, 2), 1))
    assert plans.committed() == Quotas(plan=1, weights=((0, 4), (1, 2)))
    assert plans.committed() is None
    plans.entered(0, step=7)
    assert (mailbox.state.phase, mailbox.state.epoch) == (RankPhase.RESHAPING, 0)
    mailbox.commit(commit_of(with_quotas(3, 3), 2))
    plans.entered(1, step=8)
    assert (mailbox.state.phase, mailbox.state.epoch, mailbox.state.steps_applied) == (RankPhase.TRAINING, 1, 8)
    assert plans.committed() == Quotas(plan=2, weights=((0, 3), (1, 3)))


def test_a_plan_that_another_replica_was_first_to_hear_of_is_in_force_too(mailbox: Mailbox) -> None:
    plans = Plans(mailbox, 6)
    plans.entered(3, step=5)
    assert (mailbox.state.phase, mailbox.state.epoch) == (RankPhase.TRAINING, 3)
    assert mailbox.state.failed_epoch == 0


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (with_quotas(4, 3), "7 micro-batches"),
        (replace(HOME, whole=False), "one of replicas"),
        (
            replace(uniform_layout(num_blocks=1, tensor=2, pipeline=1, data=2, num_micro_batches=6), whole=True),
            "one rank",
        ),
    ],
)
def test_a_layout_that_replicas_cannot_follow_is_refused(mailbox: Mailbox, layout: Layout, why: str) -> None:
    Plans(mailbox, 6)
    with pytest.raises(ValueError, match=why):
        mailbox.check(layout)
