"""What is saved of a job is the job: whatever has happened to it, who goes on with it has the same."""

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenkeel.history.errors import StaleStateError
from evenkeel.history.records import JobRecord, RankExitRecord
from evenkeel.history.vocabulary import PlanState, VerdictKind
from evenkeel.layouts.rank_state import StandIn
from evenkeel.services.scheduler.adapters.store.job_document import restored_job, saved_state
from evenkeel.services.scheduler.dispatch.agreement import NothingLeftError
from evenkeel.services.scheduler.dispatch.protocol import Decision, RankAwayError
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.job import Job, Timer
from tests.simulation.history import MemoryHistory
from tests.unit.scheduler.jobs.play import HOME, START, WORKLOAD, Play, gpt, registration

COMES_AGAIN = (
    "question",
    "timers",
    "suspects",
    "heard_at",
    "iteration_seconds",
    "num_failures",
    "num_second_looks",
    "waited",
    "awaited",
)
"""What of a job is not kept, since it comes again by itself."""


class Kept(Play):
    """A job of which everything is saved, as the service around it does."""

    def __init__(self, **how: Any) -> None:
        self.history = MemoryHistory()
        record = JobRecord(job_id="job", name="", model=gpt(6), layout=HOME, registered_at=START, job_token="x" * 16)
        self.history.take(record)
        self.before = restored_job(self.history.stored("job"), "salt")
        self.version = 0
        super().__init__(**how)

    def on(self, event: events.Event) -> steps.Step:
        step = super().on(event)
        if (step.save or step.keep) and not step.job.known.finished:
            self.version += 1
            for change in (*step.save, saved_state(step.job, self.before, self.version)):
                self.history.take(change)
            self.before = step.job
            assert self.restored() == as_kept(step.job)
        return step

    def restored(self) -> Job:
        return restored_job(self.history.stored("job"), "salt")

    def report_exit(self, rank: int, incarnation: int) -> None:
        line = "KeyError: 'x'" if rank % 2 else ""
        one = RankExitRecord(job_id="job", rank=rank, incarnation=incarnation, code=1, last_line=line, at=self.at)
        self.on(events.ExitsReported((one,)))

    def profiled(self, iteration: int) -> None:
        profile = JobProfile(
            job_id="job",
            iteration=iteration,
            epoch=self.known.epoch,
            workload=WORKLOAD,
            iteration_seconds=1.9,
            throughputs={},
        )
        self.on(profile)

    def decided(self) -> None:
        known = self.known
        decision = Decision(
            from_epoch=known.epoch,
            from_layout=known.layout,
            sources=known.layout.ranks,
            steps_applied=7,
            stand_ins=(StandIn(owner=1, keeper=2),),
            from_checkpoint=True,
        )
        self.on(events.Agreed(self.plan.record.plan_id, decision))


def as_kept(job: Job) -> Job:
    new = {each.name: each for each in fields(Job)}
    fresh = Job(known=job.known, salt=job.salt)
    assert new.keys() >= set(COMES_AGAIN)
    return replace(job, **{name: getattr(fresh, name) for name in COMES_AGAIN})


VERDICTS = (VerdictKind.FAIL_STOP, VerdictKind.HANG, VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED)
WHAT = ("verdict", "registers", "rejoins", "exits", "profile", "ends", "plan", "plan", "plan", "waits")
HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(WHAT),
        st.integers(0, 7),
        st.sampled_from(VERDICTS),
    ),
    min_size=3,
    max_size=20,
)


def happens(job: Kept, what: str, rank: int, kind: VerdictKind) -> None:
    """One thing that can happen to a job as it is; nothing where it cannot."""
    newest = max(
        [job.known.ranks[rank].incarnation, *([n.incarnation] if (n := job.known.newcomers.get(rank)) else [])]
    )
    if what == "verdict":
        job.say(kind, rank, incarnation=newest, throughput=1.0 if kind is VerdictKind.RECOVERED else 0.5)
    elif what == "registers":
        job.on(events.RanksRegistered((registration(rank, newest + 1),)))
    elif what == "rejoins":
        job.say(VerdictKind.REJOINED, rank, incarnation=newest)
    elif what == "exits":
        job.report_exit(rank, newest)
    elif what == "profile":
        job.profiled(job.known.iteration + 1 + rank)
    elif what == "ends":
        job.on(JobEnded(job_id="job"))
    elif what == "waits":
        job.at += timedelta(seconds=10.0 * rank)
    elif job.step.meanwhile:
        job.solved()
    elif (plan := job.job.known.flight) is not None and rank < 6:
        if plan.decision is None:
            job.decided()
        else:
            job.applied()
    elif plan is not None:
        job.failed(RankAwayError("away") if rank == 6 else NothingLeftError("nothing"))


@given(HAPPENINGS)
@example([("verdict", 3, VerdictKind.FAIL_STOP), ("plan", 0, VerdictKind.HANG), ("plan", 7, VerdictKind.HANG)])
@settings(max_examples=60, deadline=None)
def test_whatever_happens_to_a_job_who_goes_on_with_it_has_the_same(
    happenings: list[tuple[str, int, VerdictKind]],
) -> None:
    job = Kept()
    for happening in happenings:
        happens(job, *happening)


def test_a_job_of_which_nothing_was_saved_is_as_it_was_registered() -> None:
    job = Kept(registered=False, profiled=False)
    assert job.version == 0
    assert job.restored().known.ranks == job.known.ranks


def test_only_the_ranks_that_have_changed_are_written() -> None:
    job = Kept()
    before = job.job
    job.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    assert set(saved_state(job.job, before, 2).seats) == {3}


def test_a_decided_plan_is_finished_and_an_undecided_one_ends_when_somebody_else_goes_on() -> None:
    for is_decided in (False, True):
        job = Kept()
        job.say(VerdictKind.FAIL_STOP, 6)
        job.solved()
        plan_id = job.plan.record.plan_id
        if is_decided:
            job.decided()
        job.job = job.restored()
        job.on(events.Began())
        if is_decided:
            assert job.plan.record.plan_id == plan_id
            assert job.plan.decision is not None
        else:
            assert job.job.known.flight is None
            assert job.plan_states[plan_id] == [PlanState.PROPOSED, PlanState.ABORTED]
            assert job.step.meanwhile, "what the state needs is asked for anew"


def test_a_decided_plan_that_reads_from_a_process_which_died_is_over() -> None:
    job = Kept()
    job.say(VerdictKind.FAIL_STOP, 6)
    job.solved()
    job.decided()
    plan_id = job.plan.record.plan_id
    job.say(VerdictKind.FAIL_STOP, 3)
    job.job = job.restored()
    job.on(events.Began())
    assert job.job.known.flight is None
    assert job.plan_states[plan_id][-1] is PlanState.ABORTED
    assert job.step.meanwhile, "a recovery is asked for"


def test_processes_that_hang_are_told_to_leave_by_whoever_goes_on() -> None:
    job = Kept()
    job.say(VerdictKind.HANG, 3)
    job.job = job.restored()
    step = job.on(events.Began())
    assert [one.info.rank for one in step.then if isinstance(one, steps.Evict)] == [3]


def test_the_first_profile_and_the_end_of_all_processes_are_kept_though_the_history_learns_nothing() -> None:
    job = Kept()
    assert not job.step.save
    assert job.restored().known.workload == WORKLOAD
    job.on(JobEnded(job_id="job"))
    job.job = job.restored()
    job.on(events.Began())
    assert Timer.ENDED in job.timers_set()


def test_who_does_not_know_what_was_saved_last_saves_nothing() -> None:
    job = Kept()
    with pytest.raises(StaleStateError):
        job.history.take(saved_state(job.job, job.before, job.version))
