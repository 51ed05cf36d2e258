"""The mailbox by examples: one per rule of its docstring, threads only where a rule is about waiting."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.rank_state import Ballot, LinkProbe, RankPhase, RankState
from evenkeel.trainer_sdk.control.acceptor import Acceptor
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.refusals import FinishedError, StaleBallotError
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape

LAYOUT = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=1, num_micro_batches=2)


def reshape(epoch: int, mode: ApplyMode, plan_id: str = "", *, term: int = 0) -> Reshape:
    plan_id = plan_id or f"plan-{epoch}"
    return Reshape(job_id="job", plan_id=plan_id, epoch=epoch, mode=mode, to_layout=LAYOUT, term=term)


def commit(epoch: int, mode: ApplyMode, plan_id: str = "", *, term: int = 0) -> Commit:
    steps = 5 if mode is ApplyMode.RECOVER else -1
    plan = reshape(epoch, mode, plan_id, term=term)
    return Commit(reshape=plan, from_epoch=0, from_layout=LAYOUT, sources=(0,), steps_applied=steps)


def taken(box: Mailbox, epoch: int | None = None) -> int | None:
    """The epoch of the plan that is handed over now, and applied at once; None when there is none."""
    with box.switching(epoch) as handed_over:
        if handed_over is None:
            return None
        assert box.state.phase is RankPhase.RESHAPING
        box.publish(state(RankPhase.TRAINING, epoch=handed_over.reshape.epoch))
        return handed_over.reshape.epoch


def state(phase: RankPhase, epoch: int = 0, steps: int = 5) -> RankState:
    return RankState(rank=1, incarnation=0, phase=phase, epoch=epoch, iteration=steps, steps_applied=steps)


@pytest.fixture
def mailbox() -> Mailbox:
    box = Mailbox(rank=1)
    box.publish(state(RankPhase.TRAINING))
    return box


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2) as executor:
        yield executor


def test_a_boundary_commit_is_taken_at_the_boundary_only(mailbox: Mailbox) -> None:
    mailbox.prepare(reshape(1, ApplyMode.BOUNDARY), timeout_seconds=0)
    assert not mailbox.interrupted()
    mailbox.commit(commit(1, ApplyMode.BOUNDARY))
    assert mailbox.committed_epoch() == 1
    assert taken(mailbox, 2) is None, "the vote was on another plan"
    assert taken(mailbox, 1) == 1
    assert taken(mailbox) is None, "a commit is handed over once"
    assert (mailbox.state.phase, mailbox.state.epoch) == (RankPhase.TRAINING, 1)


def test_a_recover_prepare_interrupts_and_answers_once_the_rank_is_parked(
    mailbox: Mailbox, threads: ThreadPoolExecutor
) -> None:
    answer = threads.submit(mailbox.prepare, reshape(1, ApplyMode.RECOVER), 60.0)
    interrupted = threading.Event()
    while not interrupted.is_set():
        if mailbox.interrupted():
            interrupted.set()
    assert not answer.done()
    mailbox.publish(state(RankPhase.PARKED, steps=6))
    assert answer.result(timeout=60).steps_applied == 6
    mailbox.commit(commit(1, ApplyMode.RECOVER))
    with mailbox.switching() as handed_over:
        assert handed_over is not None
        assert not mailbox.interrupted(), "the rank parked as asked and now moves to the new epoch"
        mailbox.publish(state(RankPhase.TRAINING, epoch=1))


def test_a_recover_prepare_fails_at_its_deadline_when_the_rank_does_not_park(mailbox: Mailbox) -> None:
    with pytest.raises(TimeoutError, match="did not park"):
        mailbox.prepare(reshape(1, ApplyMode.RECOVER), timeout_seconds=0.01)
    assert mailbox.interrupted(), "the wish to park outlives the call"


def test_the_same_call_twice_has_one_effect_although_the_state_went_on(mailbox: Mailbox) -> None:
    mailbox.prepare(reshape(1, ApplyMode.BOUNDARY), 0)
    mailbox.publish(state(RankPhase.TRAINING, steps=9))
    assert mailbox.prepare(reshape(1, ApplyMode.BOUNDARY), 0).steps_applied == 9
    mailbox.commit(commit(1, ApplyMode.BOUNDARY))
    assert mailbox.prepare(reshape(1, ApplyMode.BOUNDARY), 0).pending_epoch == 1
    assert taken(mailbox) == 1
    assert mailbox.commit(commit(1, ApplyMode.BOUNDARY)).epoch == 1
    assert taken(mailbox) is None


def test_older_epochs_and_other_plans_for_a_committed_epoch_are_refused(mailbox: Mailbox) -> None:
    mailbox.commit(commit(3, ApplyMode.BOUNDARY))
    for stale in (reshape(2, ApplyMode.RECOVER), reshape(3, ApplyMode.RECOVER, "other")):
        with pytest.raises(StaleBallotError):
            mailbox.prepare(stale, 0)
    for late in (commit(2, ApplyMode.RECOVER), commit(3, ApplyMode.RECOVER, "other")):
        with pytest.raises(StaleBallotError):
            mailbox.commit(late)


def test_a_late_commit_of_a_plan_that_a_newer_prepare_replaced_is_refused(mailbox: Mailbox) -> None:
    mailbox.prepare(reshape(1, ApplyMode.BOUNDARY), 0)
    mailbox.prepare(reshape(2, ApplyMode.BOUNDARY), 0)
    with pytest.raises(StaleBallotError):
        mailbox.commit(commit(1, ApplyMode.BOUNDARY))


def test_a_recover_prepare_hides_a_boundary_commit_and_its_abort_shows_it_again(mailbox: Mailbox) -> None:
    mailbox.commit(commit(1, ApplyMode.BOUNDARY))
    with pytest.raises(TimeoutError):
        mailbox.prepare(reshape(2, ApplyMode.RECOVER), 0)
    assert taken(mailbox) is None
    assert mailbox.committed_epoch() == 0
    mailbox.abort("plan-2", Ballot(0, 2))
    assert not mailbox.interrupted()
    assert mailbox.committed_epoch() == 1
    assert taken(mailbox) == 1


def test_another_plan_of_the_ballot_that_was_asked_about_is_refused(mailbox: Mailbox) -> None:
    mailbox.prepare(reshape(1, ApplyMode.BOUNDARY), 0)
    with pytest.raises(StaleBallotError, match="too late"):
        mailbox.commit(commit(1, ApplyMode.BOUNDARY, "other"))
    assert mailbox.commit(commit(1, ApplyMode.BOUNDARY)).pending_epoch == 1


def test_a_prepare_that_arrives_after_its_abort_is_refused(mailbox: Mailbox) -> None:
    mailbox.abort("plan-1", Ballot(0, 1))
    with pytest.raises(StaleBallotError) as refused:
        mailbox.prepare(reshape(1, ApplyMode.RECOVER), 0)
    assert refused.value.promised == (0, 1)
    assert not mailbox.interrupted()
    mailbox.prepare(reshape(2, ApplyMode.BOUNDARY), 0)


def test_a_prepare_between_take_and_reshape_waits_for_the_next_parking(
    mailbox: Mailbox, threads: ThreadPoolExecutor
) -> None:
    mailbox.publish(state(RankPhase.PARKED))
    mailbox.commit(commit(1, ApplyMode.RECOVER))
    with mailbox.switching() as handed_over:
        assert handed_over is not None
        answer = threads.submit(mailbox.prepare, reshape(2, ApplyMode.RECOVER), 60.0)
        while not mailbox.interrupted():
            pass
    assert not answer.done(), "where that has left the rank, nobody knows yet"
    assert mailbox.state.phase is RankPhase.RESHAPING
    mailbox.publish(state(RankPhase.PARKED, steps=6))
    assert answer.result(timeout=60).steps_applied == 6


def test_a_newer_prepare_releases_the_waiter_of_an_older_one(mailbox: Mailbox, threads: ThreadPoolExecutor) -> None:
    old = threads.submit(mailbox.prepare, reshape(1, ApplyMode.RECOVER), 60.0)
    while not mailbox.interrupted():
        pass
    new = threads.submit(mailbox.prepare, reshape(2, ApplyMode.RECOVER), 60.0)
    with pytest.raises(StaleBallotError, match="superseded"):
        old.result(timeout=60)
    mailbox.publish(state(RankPhase.PARKED))
    assert new.result(timeout=60).phase is RankPhase.PARKED


def test_what_is_committed_and_not_applied_is_told_to_whoever_asks_next(mailbox: Mailbox) -> None:
    mailbox.commit(commit(1, ApplyMode.BOUNDARY))
    answer = mailbox.prepare(reshape(2, ApplyMode.BOUNDARY), 0)
    assert (answer.epoch, answer.pending_epoch, answer.promised) == (0, 1, (0, 2))
    assert taken(mailbox) == 1, "it was decided, and the later one is not"
    assert mailbox.state.pending_epoch == 0


def test_a_standby_whose_joiner_died_takes_part_in_the_next_plan() -> None:
    """The lock-out: a plan of which this rank was a part could not be carried out, and it refused every later one."""
    standby = Mailbox(rank=1)
    standby.publish(state(RankPhase.JOINING))
    standby.commit(commit(1, ApplyMode.BOUNDARY))
    with contextlib.suppress(OSError), standby.switching():
        raise OSError("the joiner is gone")
    standby.publish(state(RankPhase.JOINING))
    answer = standby.prepare(reshape(3, ApplyMode.BOUNDARY), 0)
    assert (answer.pending_epoch, answer.failed_epoch) == (0, 1)
    assert answer.failed_reason == "OSError: the joiner is gone"
    standby.commit(commit(3, ApplyMode.BOUNDARY))
    assert taken(standby) == 3
    assert standby.state.failed_epoch == 0


def test_plans_are_over_up_to_the_epoch_that_others_have_led_a_rank_into(mailbox: Mailbox) -> None:
    with pytest.raises(TimeoutError):
        mailbox.prepare(reshape(1, ApplyMode.RECOVER), 0)
    mailbox.publish(state(RankPhase.TRAINING, epoch=1))
    assert not mailbox.interrupted()
    mailbox.commit(commit(2, ApplyMode.BOUNDARY))
    mailbox.publish(state(RankPhase.TRAINING, epoch=2))
    assert (mailbox.state.pending_epoch, taken(mailbox)) == (0, None)


def test_a_greater_ballot_is_answered_whatever_a_rank_is_at(mailbox: Mailbox) -> None:
    mailbox.commit(commit(1, ApplyMode.BOUNDARY))
    with mailbox.switching(1):
        assert mailbox.prepare(reshape(2, ApplyMode.BOUNDARY), 0).pending_epoch == 1
        mailbox.commit(commit(2, ApplyMode.BOUNDARY))
        assert mailbox.prepare(reshape(3, ApplyMode.BOUNDARY), 0).pending_epoch == 2
    mailbox.publish(state(RankPhase.TRAINING))
    assert mailbox.state.failed_reason == "the training thread left it without having applied it"
    assert mailbox.prepare(reshape(4, ApplyMode.BOUNDARY), 0).pending_epoch == 2
    assert taken(mailbox, 2) == 2


def test_a_commit_of_a_later_scheduler_counts_and_of_an_earlier_one_does_not(mailbox: Mailbox) -> None:
    mailbox.prepare(reshape(5, ApplyMode.BOUNDARY, term=1), 0)
    mailbox.follow(2)
    with pytest.raises(StaleBallotError) as refused:
        mailbox.commit(commit(5, ApplyMode.BOUNDARY, term=1))
    assert refused.value.promised == (2, 0)
    with pytest.raises(StaleBallotError, match="not in charge"):
        mailbox.follow(1)
    mailbox.prepare(reshape(3, ApplyMode.BOUNDARY, term=2), 0)
    mailbox.commit(commit(3, ApplyMode.BOUNDARY, term=2))
    assert taken(mailbox) == 3
    with pytest.raises(StaleBallotError, match="leads to epoch 3"):
        mailbox.prepare(reshape(3, ApplyMode.BOUNDARY, "other", term=7), 0)


def test_what_an_earlier_scheduler_asked_about_is_off_and_what_it_decided_is_not(mailbox: Mailbox) -> None:
    mailbox.commit(commit(1, ApplyMode.BOUNDARY, term=1))
    with pytest.raises(TimeoutError):
        mailbox.prepare(reshape(2, ApplyMode.RECOVER, term=1), 0.0)
    assert mailbox.interrupted()
    mailbox.follow(2)
    assert not mailbox.interrupted()
    assert taken(mailbox, 1) == 1


def test_a_rank_that_has_finished_says_so(mailbox: Mailbox, threads: ThreadPoolExecutor) -> None:
    waiting = threads.submit(mailbox.prepare, reshape(1, ApplyMode.RECOVER), 60.0)
    while not mailbox.interrupted():
        pass
    mailbox.publish(state(RankPhase.FINISHED))
    with pytest.raises(FinishedError, match="rank 1 has finished"):
        waiting.result(timeout=60)
    with pytest.raises(FinishedError):
        mailbox.prepare(reshape(2, ApplyMode.BOUNDARY), 0)
    with pytest.raises(FinishedError):
        mailbox.commit(commit(2, ApplyMode.BOUNDARY))


def test_a_rank_that_has_finished_takes_no_plan_that_waits(mailbox: Mailbox) -> None:
    mailbox.commit(commit(1, ApplyMode.BOUNDARY))
    mailbox.publish(state(RankPhase.FINISHED))
    assert taken(mailbox) is None


def test_the_way_into_the_first_epoch_is_none_of_a_plan() -> None:
    box = Mailbox(rank=1)
    with box.beginning():
        assert (box.state.phase, box.state.pending_epoch) == (RankPhase.RESHAPING, 0)
        box.publish(state(RankPhase.TRAINING))
    assert box.state.phase is RankPhase.TRAINING
    assert box.state.failed_epoch == 0


def test_a_new_process_says_whose_it_is_joins_and_can_run_anything() -> None:
    box = Mailbox(rank=3, incarnation=2)
    assert (box.state.rank, box.state.incarnation, box.state.phase) == (3, 2, RankPhase.JOINING)
    assert (box.interrupted(), box.leaving()) == (False, False)
    box.check(LAYOUT)
    checked: list[Layout] = []
    box.require(checked.append)
    box.check(LAYOUT)
    assert checked == [LAYOUT]


def test_a_scheduler_that_is_heard_again_has_still_asked_what_it_asked(mailbox: Mailbox) -> None:
    with pytest.raises(TimeoutError):
        mailbox.prepare(reshape(1, ApplyMode.RECOVER, term=2), 0)
    mailbox.follow(2)
    assert mailbox.interrupted()


def test_on_its_way_to_an_epoch_a_rank_is_evicted_from_the_one_before_and_interrupted_in_that_one_only(
    mailbox: Mailbox,
) -> None:
    mailbox.commit(commit(1, ApplyMode.BOUNDARY))
    with mailbox.switching(1):
        late = "interrupt for epoch 0, .* at epoch 1, .* rank 1 is at epoch 0, promised to epoch 1 of term 0"
        with pytest.raises(StaleBallotError, match=late):
            mailbox.interrupt(0, leave=False)
        assert not mailbox.interrupted()
        mailbox.interrupt(0, leave=True)
        assert mailbox.leaving()
        mailbox.publish(state(RankPhase.TRAINING, epoch=1))


def test_what_was_decided_before_the_first_epoch_is_carried_out_in_it() -> None:
    box = Mailbox(rank=1)
    box.commit(commit(1, ApplyMode.BOUNDARY))
    with box.beginning():
        box.publish(state(RankPhase.TRAINING))
    assert taken(box, 1) == 1


def test_a_first_epoch_that_cannot_be_reached_is_no_plans_failure() -> None:
    box = Mailbox(rank=1)
    with contextlib.suppress(OSError), box.beginning():
        raise OSError("a peer is gone")
    box.publish(state(RankPhase.PARKED))
    assert (box.state.failed_epoch, box.state.failed_reason) == (0, "")


def test_a_watcher_waits_for_a_change_for_the_end_and_no_longer_than_it_said(
    mailbox: Mailbox, threads: ThreadPoolExecutor
) -> None:
    seen, _ = mailbox.wait_for_change(-1, 60.0)
    began = time.monotonic()
    assert mailbox.wait_for_change(seen, 0.05)[0] == seen
    assert time.monotonic() - began >= 0.05
    waiting = threads.submit(mailbox.wait_for_change, seen, 60.0)
    mailbox.wake()
    mailbox.publish(state(RankPhase.PARKED))
    newer, changed = waiting.result(timeout=60)
    assert (newer > seen, changed.phase) == (True, RankPhase.PARKED)
    over = threading.Event()
    waiting = threads.submit(mailbox.wait_for_change, newer, 60.0, over.is_set)
    over.set()
    mailbox.wake()
    assert waiting.result(timeout=60)[0] == newer


def test_whoever_waits_for_the_end_of_a_rank_hears_of_its_eviction(
    mailbox: Mailbox, threads: ThreadPoolExecutor
) -> None:
    assert not mailbox.wait_until_leaving(0.05)
    waiting = threads.submit(mailbox.wait_until_leaving, 60.0)
    mailbox.interrupt(0, leave=True)
    assert waiting.result(timeout=60)


def test_a_phase_that_follows_from_plans_is_not_published(mailbox: Mailbox) -> None:
    with pytest.raises(ValueError, match=r"^a rank is RESHAPING .* it is not published$"):
        mailbox.publish(state(RankPhase.RESHAPING))


def test_a_parked_rank_ignores_a_boundary_that_is_lost_and_a_joiner_takes_it() -> None:
    parked, joiner, left_behind = Mailbox(rank=1), Mailbox(rank=1), Mailbox(rank=1)
    parked.publish(state(RankPhase.PARKED))
    for box in (parked, joiner):
        box.commit(commit(1, ApplyMode.BOUNDARY))
    assert taken(parked) is None
    assert taken(joiner) == 1
    left_behind.publish(state(RankPhase.PARKED, epoch=1))
    left_behind.commit(replace(commit(3, ApplyMode.BOUNDARY), from_epoch=2))
    assert taken(left_behind) == 3, "others have left its epoch: it joins them"


def test_interrupts_end_with_the_epoch_they_are_about(mailbox: Mailbox) -> None:
    mailbox.interrupt(0, leave=False)
    assert mailbox.interrupted()
    mailbox.publish(state(RankPhase.PARKED))
    mailbox.commit(commit(1, ApplyMode.RECOVER))
    with mailbox.switching():
        assert not mailbox.interrupted()
        mailbox.publish(state(RankPhase.TRAINING, epoch=1))
    with pytest.raises(StaleBallotError):
        mailbox.interrupt(0, leave=True)
    assert not mailbox.leaving()


def test_an_evicted_rank_leaves_and_its_waits_end(mailbox: Mailbox, threads: ThreadPoolExecutor) -> None:
    mailbox.publish(state(RankPhase.PARKED))

    def wait() -> Commit | None:
        with mailbox.switching(timeout_seconds=60.0) as handed_over:
            return handed_over

    waiting = threads.submit(wait)
    mailbox.interrupt(0, leave=True)
    assert waiting.result(timeout=60) is None
    assert mailbox.leaving()
    assert mailbox.interrupted()


def test_watchers_hear_of_phases_and_epochs_and_not_of_steps(mailbox: Mailbox) -> None:
    version, _ = mailbox.wait_for_change(-1, 0)
    mailbox.publish(state(RankPhase.TRAINING, steps=6))
    assert mailbox.wait_for_change(version, 0)[0] == version
    mailbox.publish(state(RankPhase.PARKED, steps=6))
    newer, seen = mailbox.wait_for_change(version, 0)
    assert newer > version
    assert seen.phase is RankPhase.PARKED


def test_a_probe_is_run_by_the_training_thread_at_a_border(mailbox: Mailbox, threads: ThreadPoolExecutor) -> None:
    asked = threads.submit(mailbox.probes.ask, 64, 3, 60.0)
    ran_on: list[int] = []

    def run(size: int, repetitions: int) -> list[float]:
        ran_on.append(threading.get_ident())
        return [size * 0.001] * repetitions

    while not mailbox.probes.serve(run):
        pass
    assert asked.result(timeout=60) == [0.064] * 3
    assert ran_on == [threading.get_ident()]


LINK = LinkProbe(probe_id=5, partner_rank=1, num_bytes=100, num_ranks=4, repetitions=3)


def test_a_probe_of_a_link_is_answered_by_the_training_thread_once(
    mailbox: Mailbox, threads: ThreadPoolExecutor
) -> None:
    mailbox.probes.serve_links()
    asked = threads.submit(mailbox.probes.ask_link, LINK, 60.0)
    while (link := mailbox.probes.waiting_link()) is None:
        pass
    assert not mailbox.probes.serve(lambda size, repetitions: [1.0])
    mailbox.probes.end_link(link, seconds=[0.25])
    assert asked.result(timeout=60) == [0.25]
    mailbox.probes.end_link(link, error="too late to say so")
    assert mailbox.probes.waiting_link() is None


def test_why_a_probe_of_a_link_was_not_run_is_told(mailbox: Mailbox, threads: ThreadPoolExecutor) -> None:
    mailbox.probes.serve_links()
    asked = threads.submit(mailbox.probes.ask_link, LINK, 60.0)
    while (link := mailbox.probes.waiting_link()) is None:
        pass
    mailbox.probes.end_link(link, error="not run: the epoch ended")
    with pytest.raises(RuntimeError, match="the epoch ended"):
        asked.result(timeout=60)


def test_a_loop_without_step_votes_refuses_probes_of_links(mailbox: Mailbox) -> None:
    with pytest.raises(ValueError, match="no step vote"):
        mailbox.probes.ask_link(LINK, 0.1)


@pytest.mark.parametrize(
    "wrong", [{"probe_id": 0}, {"num_bytes": 0}, {"num_bytes": 1 << 40}, {"num_ranks": 3}, {"repetitions": 1}]
)
def test_probes_of_links_out_of_range_are_refused(mailbox: Mailbox, wrong: dict[str, int]) -> None:
    mailbox.probes.serve_links()
    with pytest.raises(ValueError, match="use "):
        mailbox.probes.ask_link(replace(LINK, **wrong), 0.1)


@pytest.mark.parametrize(("size", "repetitions"), [(0, 1), (5000, 1), (8, 0), (8, 101)])
def test_probes_out_of_range_are_refused(mailbox: Mailbox, size: int, repetitions: int) -> None:
    with pytest.raises(ValueError, match="use 1 to"):
        mailbox.probes.ask(size, repetitions, 0.1)


class Guarded(Acceptor):
    """Refuses to be touched by whoever does not hold the lock."""

    condition: threading.Condition | None = None

    def __getattribute__(self, name: str) -> object:
        condition = object.__getattribute__(self, "condition")
        if condition is not None and name != "leaving":
            assert condition._is_owned(), f"{name} without the lock"
        return object.__getattribute__(self, name)


def test_nobody_touches_the_acceptor_without_the_lock() -> None:
    box = Mailbox(rank=1)
    box._acceptor = guarded = Guarded(1)
    guarded.condition = box._changed
    box.publish(state(RankPhase.TRAINING))
    box.follow(0)
    box.prepare(reshape(1, ApplyMode.BOUNDARY), 0.0)
    box.commit(commit(1, ApplyMode.BOUNDARY))
    assert box.committed_epoch() == 1
    assert taken(box, 1) == 1
    box.abort("plan-2", Ballot(0, 2))
    box.interrupt(1, leave=True)
    box.wait_for_change(-1, 0.0)
    assert box.wait_until_leaving(0.0)
    assert box.state.epoch == 1
    with Mailbox(rank=2).beginning():
        pass
