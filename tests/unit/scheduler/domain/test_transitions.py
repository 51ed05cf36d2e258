"""The table of what verdicts, registrations and applied plans do to a job's state."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from evenkeel.contracts.verdict_ids import AGAIN, verdict_id
from evenkeel.history.records import (
    CulpritRecord,
    IncidentEventRecord,
    IncidentRecord,
    JobRecord,
    PlanRecord,
    RankRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import IncidentEventKind, PlanMode, VerdictKind
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.search.solver import solve
from evenkeel.services.scheduler.domain.exits import own_verdict
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, JobState, PlanNeed, new_job
from evenkeel.services.scheduler.domain.parts import PlanInFlight
from evenkeel.services.scheduler.domain.profiles import JobProfile, on_profile
from evenkeel.services.scheduler.domain.replacements import in_their_places, on_rank_registered
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason
from evenkeel.services.scheduler.domain.transitions import on_applied, on_verdict
from evenkeel.services.scheduler.plans.decision import Choice, DecisionRule, decide, flips_of

HOME = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=16)
START = datetime(2026, 1, 1, tzinfo=UTC)
COUNTER = iter(range(10**9))


def registration(rank: int, incarnation: int = 0) -> RankRecord:
    return RankRecord(
        job_id="job",
        rank=rank,
        incarnation=incarnation,
        node="n",
        device=f"d{rank}",
        address=f"127.0.0.1:{5000 + 10 * rank + incarnation}",
        process_id=1,
        registered_at=START,
    )


def fresh_job() -> JobKnowledge:
    job = new_job(JobRecord(job_id="job", name="", model=gpt(6), layout=HOME, registered_at=START, job_token="x" * 16))
    for rank in HOME.ranks:
        job = on_rank_registered(job, registration(rank))
    return job


def verdict(
    kind: str, *ranks: int, incarnation: int = 0, throughput: float = 0.0, after: float = 1.0, verdict_id: str = ""
) -> VerdictRecord:
    return VerdictRecord(
        verdict_id=verdict_id or f"v{next(COUNTER)}",
        job_id="job",
        kind=kind,
        culprits=tuple(CulpritRecord(rank=r, incarnation=incarnation, node="n", device=f"d{r}") for r in ranks),
        throughput=throughput,
        throughput_margin=0.01,
        confidence=0.99,
        first_iteration=3,
        decided_iteration=5,
        decided_at=START + timedelta(seconds=after),
    )


def planned(job: JobKnowledge, mode: PlanMode = PlanMode.RECOVER) -> JobKnowledge:
    """The job with the solver's plan applied."""
    layout = solve(job.situation(TransitionCosts())).layout
    epoch = job.top_epoch + 1
    plan = in_flight(epoch, layout, mode=mode, incident_id=job.cause, throughputs=job.usable)
    job = replace(job, flight=plan, top_epoch=epoch, changed=False)
    return on_applied(job, first_iteration=7, at=START).job


def in_flight(epoch: int, layout: Layout, *, at: datetime = START, **more: Any) -> PlanInFlight:
    more = {"mode": PlanMode.RECOVER, **more}
    return PlanInFlight(
        record=PlanRecord(plan_id=f"p{epoch}", job_id="job", epoch=epoch, layout=layout, proposed_at=at, **more)
    )


def kinds(records: tuple[object, ...]) -> list[object]:
    return [r.kind if isinstance(r, IncidentEventRecord) else "open" for r in records]


@pytest.mark.parametrize("kind", [VerdictKind.FAIL_STOP, VerdictKind.HANG])
def test_a_rank_that_is_gone_must_be_planned_for(kind: VerdictKind) -> None:
    outcome = on_verdict(fresh_job(), verdict(kind, 3))
    assert outcome.job.lost == (3,)
    assert outcome.job.need is PlanNeed.RECOVER
    assert 3 not in outcome.job.usable
    (opened,) = outcome.records
    assert isinstance(opened, IncidentRecord)
    assert outcome.job.cause == opened.incident_id


def test_a_rank_that_hung_and_goes_on_counts_again_only_where_nobody_can_be_left_behind() -> None:
    for can_reshape in (True, False):
        job = fresh_job()
        job = job.with_rank(replace(job.ranks[0], can_reshape=can_reshape))
        hung = on_verdict(job, verdict(VerdictKind.HANG, 3))
        again = on_verdict(hung.job, verdict(VerdictKind.RECOVERED, 3, after=30.0))
        assert again.job.ranks[3].alive is not can_reshape
        assert again.job.state is (JobState.RESHAPING if can_reshape else JobState.RUNNING)
        if can_reshape:
            assert (len(again.job.incidents), again.records) == (1, ())
        else:
            assert (again.job.incidents, again.job.need) == ((), PlanNeed.NONE)
            assert kinds(again.records) == [IncidentEventKind.VERDICT, IncidentEventKind.RESOLVED]
            assert again.records[-1].lost_seconds == 29.0  # type: ignore[union-attr]


def test_a_hang_that_turns_into_a_death_is_one_incident() -> None:
    job = on_verdict(fresh_job(), verdict(VerdictKind.HANG, 3)).job
    outcome = on_verdict(job, verdict(VerdictKind.FAIL_STOP, 3))
    assert kinds(outcome.records) == [IncidentEventKind.VERDICT]
    assert len(outcome.job.incidents) == 1


def test_a_slow_device_asks_for_a_plan_and_a_newer_estimate_belongs_to_the_same_incident() -> None:
    first = on_verdict(fresh_job(), verdict(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5))
    assert first.job.need is PlanNeed.BOUNDARY
    assert first.job.usable[3] == 0.5
    second = on_verdict(first.job, verdict(VerdictKind.COMPUTE_SLOW, 3, throughput=0.3))
    assert second.job.usable[3] == 0.3
    assert kinds(second.records) == [IncidentEventKind.VERDICT]
    assert len(second.job.incidents) == 1


def test_recovery_resolves_the_incident_and_asks_for_the_way_back() -> None:
    slow = planned(on_verdict(fresh_job(), verdict(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)).job, PlanMode.BOUNDARY)
    assert slow.need is PlanNeed.NONE
    outcome = on_verdict(slow, verdict(VerdictKind.RECOVERED, 3, throughput=0.99))
    assert outcome.job.usable[3] == 1.0
    assert outcome.job.incidents == ()
    assert outcome.job.need is PlanNeed.BOUNDARY
    assert kinds(outcome.records) == [IncidentEventKind.VERDICT, IncidentEventKind.RESOLVED]


def test_a_slow_device_that_dies_closes_its_first_incident_and_opens_another() -> None:
    job = on_verdict(fresh_job(), verdict(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)).job
    outcome = on_verdict(job, verdict(VerdictKind.FAIL_STOP, 3))
    assert kinds(outcome.records) == ["open", IncidentEventKind.RESOLVED]
    assert [incident.kind for incident in outcome.job.incidents] == [VerdictKind.FAIL_STOP]


@pytest.mark.parametrize("register_first", [True, False])
def test_a_replacement_counts_once_it_is_announced_and_registered(register_first: bool) -> None:
    job = planned(on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 3)).job)
    announce, register = verdict(VerdictKind.REJOINED, 3, incarnation=1), registration(3, 1)
    if register_first:
        job = on_rank_registered(job, register)
        assert 3 not in job.usable
        job = on_verdict(job, announce).job
    else:
        job = on_verdict(job, announce).job
        assert 3 not in job.usable
        job = on_rank_registered(job, register)
    assert job.usable[3] == 1.0
    assert job.need is PlanNeed.BOUNDARY
    back = planned(job, PlanMode.BOUNDARY)
    assert back.layout.replicas == HOME.replicas
    assert back.incidents == ()


def test_a_replacement_waits_until_nobody_counts_on_its_predecessor() -> None:
    job = on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 3)).job
    job = on_rank_registered(job, registration(3, 1))
    job = on_verdict(job, verdict(VerdictKind.REJOINED, 3, incarnation=1)).job
    assert job.need is PlanNeed.RECOVER, "the new process holds nothing of the layout in force"
    assert 3 not in job.usable
    job = planned(job)
    assert 3 not in job.layout.ranks
    assert job.usable[3] == 1.0


def test_a_replacement_whose_predecessors_death_nobody_saw_is_that_death() -> None:
    job = on_rank_registered(fresh_job(), registration(3, 1))
    assert job.need is PlanNeed.NONE
    job = on_verdict(job, verdict(VerdictKind.REJOINED, 3, incarnation=1)).job
    assert job.need is PlanNeed.RECOVER


def test_how_slow_one_was_is_over_with_its_process_also_where_nobody_saw_it_die() -> None:
    job = on_verdict(fresh_job(), verdict(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)).job
    job = on_rank_registered(job, registration(3, 1))
    job = on_verdict(job, verdict(VerdictKind.REJOINED, 3, incarnation=1)).job
    assert job.incidents, "its successor waits"
    assert planned(job).incidents == ()


@pytest.mark.parametrize("is_left_behind", [True, False])
def test_one_that_was_taken_for_dead_and_registers_again_counts_again(is_left_behind: bool) -> None:
    job = on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 3)).job
    job = planned(job) if is_left_behind else job
    assert on_verdict(job, verdict(VerdictKind.REJOINED, 3)).job.lost == job.lost, "late word of its start"
    job, records = in_their_places(on_rank_registered(job, registration(3)), START)
    assert job.usable[3] == 1.0
    assert job.newcomers == {}
    assert job.need is (PlanNeed.BOUNDARY if is_left_behind else PlanNeed.NONE)
    job = planned(job, PlanMode.BOUNDARY) if is_left_behind else job
    assert job.layout.replicas == HOME.replicas
    assert job.incidents == ()
    if not is_left_behind:
        assert [record.detail for record in records] == ["it is heard again"]


def test_one_that_is_heard_again_may_die_once_more_and_stays_dead_then() -> None:
    job = fresh_job()
    for again in (False, True):
        told = own_verdict(job, VerdictKind.FAIL_STOP, [(3, 0)], (), iteration=3, at=START)
        assert told.verdict_id == verdict_id("job", VerdictKind.FAIL_STOP, 3, 0, *([AGAIN] if again else []))
        job = on_verdict(job, told).job
        assert job.lost == (3,)
        job = on_rank_registered(
            replace(job, stuck=Stuck(reason=StuckReason.NO_LAYOUT, detail="", since=START)), registration(3)
        )
        assert job.ranks[3].alive is not again
        assert (job.stuck is None) is not again


@pytest.mark.parametrize("kind", [VerdictKind.HANG, VerdictKind.PROGRAM_ERROR])
def test_one_that_is_told_to_leave_or_has_left_does_not_count_again(kind: VerdictKind) -> None:
    job = on_verdict(fresh_job(), verdict(kind, 3)).job
    assert not on_rank_registered(job, registration(3)).ranks[3].alive


def test_a_replacement_that_dies_while_it_waits_is_forgotten() -> None:
    job = planned(on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 3)).job)
    job = on_rank_registered(job, registration(3, 1))
    job = on_verdict(job, verdict(VerdictKind.FAIL_STOP, 3, incarnation=1)).job
    assert job.newcomers == {}
    assert job.need is PlanNeed.NONE


@pytest.mark.parametrize("kind", [VerdictKind.FAIL_STOP, VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED])
def test_verdicts_about_an_earlier_process_change_nothing(kind: VerdictKind) -> None:
    job = planned(on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 3)).job)
    job = on_rank_registered(job, registration(3, 1))
    job = planned(on_verdict(job, verdict(VerdictKind.REJOINED, 3, incarnation=1)).job, PlanMode.BOUNDARY)
    outcome = on_verdict(job, verdict(kind, 3, incarnation=0, throughput=0.4))
    assert replace(outcome.job, seen=job.seen) == job
    assert outcome.records == ()


@pytest.mark.parametrize(
    "kind",
    [
        VerdictKind.COMMUNICATION_RECOVERED,
        VerdictKind.STAGE_IMBALANCE,
        VerdictKind.SEQUENCE_IMBALANCE,
        VerdictKind.JITTER,
        VerdictKind.NOT_FINITE,
        VerdictKind.SPIKE,
        VerdictKind.SUSPECTED_CORRUPTION,
        "kind_99",
    ],
)
def test_other_kinds_are_only_reported(kind: str) -> None:
    job = fresh_job()
    outcome = on_verdict(job, verdict(kind, 3, throughput=0.2))
    assert replace(outcome.job, seen=job.seen) == job
    assert outcome.records == ()


def test_a_slow_link_is_an_incident_with_advice_that_asks_for_a_way_around_it_and_touches_no_device() -> None:
    job = fresh_job()
    slow = on_verdict(job, verdict(VerdictKind.COMMUNICATION_SLOW, 2, 6, throughput=0.5))
    opened, told = slow.records
    assert isinstance(opened, IncidentRecord)
    assert isinstance(told, IncidentEventRecord)
    assert "devices are healthy" in told.detail
    assert (slow.job.ranks, slow.job.need) == (job.ranks, PlanNeed.BOUNDARY)
    assert slow.job.situation(TransitionCosts()).links == (SlowLink(ranks=(2, 6), factor=2.0),)
    slower = on_verdict(slow.job, verdict(VerdictKind.COMMUNICATION_SLOW, 2, 6, throughput=0.3, after=5.0))
    assert [incident.throughput for incident in slower.job.incidents] == [0.3]
    over = on_verdict(slower.job, verdict(VerdictKind.COMMUNICATION_RECOVERED, 2, 6, after=9.0))
    assert over.job.incidents == ()
    assert (over.job.ranks, over.job.need) == (job.ranks, PlanNeed.NONE)


def test_a_slow_link_between_neighbours_is_planned_away_and_what_it_costs_does_not_become_the_scale() -> None:
    workload = replace(WORKLOAD, transfer_seconds=0.02)
    job = replace(fresh_job(), workload=workload)
    neighbours = job.layout.replicas[0].stages[0].ranks[0], job.layout.replicas[0].stages[1].ranks[0]
    slow = on_verdict(job, verdict(VerdictKind.COMMUNICATION_SLOW, *neighbours, throughput=0.05)).job
    solution = solve(slow.situation(TransitionCosts()))
    assert decide(DecisionRule(), solution, forced=False).choice is Choice.APPLY
    assert solution.predicted_seconds < 0.9 * solution.idle_seconds
    profile = JobProfile(job_id="job", iteration=50, epoch=0, workload=workload, iteration_seconds=9.0, throughputs={})
    assert on_profile(slow, profile)[0].correction == job.correction != on_profile(job, profile)[0].correction


def test_which_link_of_a_group_is_slow_is_not_known() -> None:
    job = on_verdict(fresh_job(), verdict(VerdictKind.COMMUNICATION_SLOW, 0, 1, 2, throughput=0.5)).job
    assert job.incidents
    assert job.links == ()


def test_an_endpoint_takes_over_the_incident_of_its_link_and_a_death_ends_both() -> None:
    job = on_verdict(fresh_job(), verdict(VerdictKind.COMMUNICATION_SLOW, 2, 6, throughput=0.5)).job
    job = on_verdict(job, verdict(VerdictKind.COMMUNICATION_SLOW, 2, throughput=0.5, after=5.0)).job
    assert [[culprit.rank for culprit in incident.culprits] for incident in job.incidents] == [[2]]
    gone = on_verdict(job, verdict(VerdictKind.FAIL_STOP, 2, after=9.0)).job
    assert [incident.kind for incident in gone.incidents] == [VerdictKind.FAIL_STOP]


def test_a_rank_that_the_job_does_not_have_changes_nothing() -> None:
    assert on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 99)).records == ()


def test_two_deaths_in_one_verdict_are_one_incident() -> None:
    outcome = on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 2, 6))
    assert outcome.job.lost == (2, 6)
    assert len(outcome.records) == 1


def test_a_death_of_a_rank_that_only_the_plan_in_flight_counts_on_needs_another_plan() -> None:
    job = planned(on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 3)).job)
    job = on_rank_registered(job, registration(3, 1))
    job = on_verdict(job, verdict(VerdictKind.REJOINED, 3, incarnation=1)).job
    job = replace(job, flight=in_flight(2, HOME, mode=PlanMode.BOUNDARY))
    job = on_verdict(job, verdict(VerdictKind.FAIL_STOP, 3, incarnation=1)).job
    assert job.need is PlanNeed.RECOVER


def restless_job() -> JobKnowledge:
    """Rank 3 was slow and healthy three times in a minute, and is healthy."""
    job = fresh_job()
    for turn in range(3):
        job = on_verdict(job, verdict(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5, after=20.0 * turn)).job
        job = on_verdict(job, verdict(VerdictKind.RECOVERED, 3, throughput=1.0, after=20.0 * turn + 10)).job
    return job


def test_flips_are_counted_beyond_the_first_there_and_back_and_forgotten_in_time() -> None:
    job = restless_job()
    assert flips_of(job, START.timestamp() + 60) == 4
    assert flips_of(job, START.timestamp() + 7200) == 0


def test_a_restless_device_stands_in_the_way_of_its_own_plans_only() -> None:
    now = START.timestamp() + 70
    slow = on_verdict(restless_job(), verdict(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5, after=70.0)).job
    assert flips_of(slow, now) == 5
    other = on_verdict(restless_job(), verdict(VerdictKind.COMPUTE_SLOW, 5, throughput=0.5, after=70.0)).job
    assert flips_of(other, now) == 0
    both = on_verdict(slow, verdict(VerdictKind.COMPUTE_SLOW, 5, throughput=0.5, after=70.0)).job
    assert flips_of(both, now) == 0
    gone = on_verdict(slow, verdict(VerdictKind.FAIL_STOP, 5, after=70.0)).job
    assert flips_of(gone, now) == 0


def test_a_device_that_stays_slow_is_no_reason_to_follow_one_that_flips() -> None:
    job = on_verdict(restless_job(), verdict(VerdictKind.COMPUTE_SLOW, 5, throughput=0.5, after=65.0)).job
    job = planned(job, PlanMode.BOUNDARY)
    job = on_verdict(job, verdict(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5, after=70.0)).job
    assert flips_of(job, START.timestamp() + 70) == 5


def test_a_replacement_is_taken_back_whoever_flips() -> None:
    job = planned(on_verdict(restless_job(), verdict(VerdictKind.FAIL_STOP, 6, after=65.0)).job)
    assert flips_of(job, START.timestamp() + 70) == 4, "nothing has changed: the most restless rank counts"
    job = on_verdict(job, verdict(VerdictKind.REJOINED, 6, incarnation=1, after=70.0)).job
    job = on_rank_registered(job, registration(6, 1))
    assert job.need is PlanNeed.BOUNDARY
    assert flips_of(job, START.timestamp() + 70) == 0


events = st.lists(
    st.tuples(
        st.sampled_from(
            [
                VerdictKind.FAIL_STOP,
                VerdictKind.HANG,
                VerdictKind.COMPUTE_SLOW,
                VerdictKind.RECOVERED,
                VerdictKind.REJOINED,
                "register",
                "plan",
            ]
        ),
        st.integers(0, 7),
        st.integers(0, 2),
        st.floats(0.1, 1.0),
    ),
    max_size=25,
)


@given(events)
@settings(max_examples=120, deadline=None)
def test_whatever_happens_dead_ranks_are_planned_away_and_every_verdict_counts_once(happenings) -> None:
    job = fresh_job()
    for kind, rank, incarnation, throughput in happenings:
        if kind == "register":
            job = on_rank_registered(job, registration(rank, incarnation))
        elif kind == "plan":
            usable = set(job.usable)
            if job.need is PlanNeed.RECOVER and len(usable) >= 6:
                job = planned(job)
                assert set(job.layout.ranks) <= usable
        else:
            told = verdict(kind, rank, incarnation=incarnation, throughput=throughput)
            job = on_verdict(job, told).job
            assert on_verdict(job, told).records == ()
        assert (job.need is PlanNeed.RECOVER) == bool(job.lost)
        assert all(0.0 < p <= 1.0 for p in job.usable.values())
        assert all(
            newcomer.incarnation > job.ranks[r].incarnation or not job.ranks[r].alive
            for r, newcomer in job.newcomers.items()
        )
