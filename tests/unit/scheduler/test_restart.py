"""What a scheduler that starts again knows of a job, against what it knew before."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.history.records import (
    CulpritRecord,
    IncidentRecord,
    IncidentState,
    JobRecord,
    JobStatus,
    PlanRecord,
    PlanStatus,
    RankRecord,
    RestartRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import JobState, PlanMode, PlanState, VerdictKind
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.services.scheduler.domain.flips import num_flips
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.replacements import on_rank_registered
from evenkeel.services.scheduler.domain.restart import new_job, resumed_job
from evenkeel.services.scheduler.domain.transitions import on_verdict
from evenkeel.services.scheduler.plans.records import flight_again

HOME = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=16)
START = datetime(2026, 1, 1, tzinfo=UTC)


def registration(rank: int, incarnation: int = 0, *, can_reshape: bool = True, after: float = 0.0) -> RankRecord:
    return RankRecord(
        job_id="job",
        rank=rank,
        incarnation=incarnation,
        node="n",
        device=f"d{rank}",
        address=f"127.0.0.1:{5000 + 10 * rank + incarnation}",
        process_id=1,
        registered_at=START + timedelta(seconds=after),
        can_reshape=can_reshape,
    )


def job() -> JobKnowledge:
    known = new_job(
        JobRecord(job_id="job", name="", model=gpt(6), layout=HOME, registered_at=START, job_token="x" * 16)
    )
    for rank in HOME.ranks:
        known = on_rank_registered(known, registration(rank))
    return known


def verdict(kind: str, rank: int, after: float, *, incarnation: int = 0, throughput: float = 0.5) -> VerdictRecord:
    return VerdictRecord(
        verdict_id=f"{kind}-{rank}-{incarnation}-{after}",
        job_id="job",
        kind=kind,
        culprits=(CulpritRecord(rank=rank, incarnation=incarnation, node="n", device=f"d{rank}"),),
        throughput=throughput,
        throughput_margin=0.01,
        confidence=0.99,
        first_iteration=3,
        decided_iteration=5,
        decided_at=START + timedelta(seconds=after),
    )


def still_open(incident: IncidentRecord) -> IncidentState:
    return IncidentState(
        incident_id=incident.incident_id,
        job_id=incident.job_id,
        verdict_id=incident.verdict_id,
        kind=incident.kind,
        culprits=incident.culprits,
        first_iteration=incident.first_iteration,
        throughput=incident.throughput,
        lost_seconds=0.0,
        opened_at=incident.opened_at,
        resolved_at=None,
        plan_ids=(),
    )


def history(
    verdicts: tuple[VerdictRecord, ...] = (),
    *,
    ranks: tuple[RankRecord, ...] | None = None,
    layouts: dict[int, Layout] | None = None,
    plans: tuple[PlanStatus, ...] = (),
    planned_for: dict[int, dict[int, float]] | None = None,
    incidents: tuple[IncidentRecord, ...] = (),
) -> RestartRecord:
    layouts = layouts or {0: HOME}
    # As registered, oldest first: the newest of each rank, and those before.
    processes = ranks or tuple(registration(rank) for rank in HOME.ranks)
    newest = {each.rank: each for each in processes}
    return RestartRecord(
        job=JobStatus(
            job_id="job",
            tenant="default",
            name="",
            model=gpt(6),
            layout=layouts[max(layouts)],
            epoch=max(layouts),
            state=JobState.RUNNING,
            num_devices=8,
            registered_at=START,
            ranks=tuple(newest.values()),
        ),
        job_token="x" * 16,
        layouts=layouts,
        verdicts=verdicts,
        incidents=tuple(still_open(incident) for incident in incidents),
        plans=plans,
        planned_for=planned_for or {},
        earlier=tuple(each for each in processes if each is not newest[each.rank]),
    )


def test_a_device_that_flipped_twice_before_a_restart_is_treated_as_flipped_twice_after_it() -> None:
    past = (
        verdict(VerdictKind.COMPUTE_SLOW, 3, 0.0),
        verdict(VerdictKind.RECOVERED, 3, 10.0, throughput=1.0),
        verdict(VerdictKind.COMPUTE_SLOW, 3, 20.0),
        verdict(VerdictKind.COMPUTE_SLOW, 3, 21.0, throughput=0.45),
        verdict(VerdictKind.RECOVERED, 3, 30.0, throughput=1.0),
    )
    known = job()
    for one in past:
        known = on_verdict(known, one).job
    again = resumed_job(history(past)).job
    now = START.timestamp() + 40
    assert num_flips(known, now) == num_flips(again, now) == 2
    assert num_flips(again, now + 7200) == 0


_HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from([VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED, VerdictKind.FAIL_STOP]),
        st.sampled_from([0, 3, 5]),
        st.integers(0, 1),
    ),
    max_size=14,
)


@given(_HAPPENINGS)
def test_whatever_happened_a_restart_remembers_the_same_flips(happenings: list[tuple[VerdictKind, int, int]]) -> None:
    past = tuple(
        verdict(kind, rank, 10.0 * number, incarnation=incarnation, throughput=0.5 if "slow" in kind else 1.0)
        for number, (kind, rank, incarnation) in enumerate(happenings)
        # A later process speaks only once the earlier one is gone.
        if incarnation == 0 or (VerdictKind.FAIL_STOP, rank, 0) in happenings[:number]
    )
    known = job()
    for one in past:
        for culprit in one.culprits:
            known = on_rank_registered(known, registration(culprit.rank, culprit.incarnation))
            rejoined = verdict(VerdictKind.REJOINED, culprit.rank, 0.0, incarnation=culprit.incarnation)
            known = on_verdict(known, rejoined).job if culprit.incarnation else known
        known = on_verdict(known, one).job
    taken_over = {culprit.rank for one in past for culprit in one.culprits if culprit.incarnation}
    again = resumed_job(history(past)).job
    for rank in {0, 3, 5} - taken_over:
        assert again.flips.get(rank, ()) == known.flips.get(rank, ())


def test_what_the_layout_in_force_was_planned_for_is_known_after_a_restart() -> None:
    speeds = {rank: 0.5 if rank == 3 else 1.0 for rank in HOME.ranks}
    older = dict.fromkeys(HOME.ranks, 0.9)
    again = resumed_job(history(layouts={0: HOME, 1: HOME, 2: HOME}, planned_for={1: older, 2: speeds})).job
    assert again.answered == speeds


def committed(throughputs: dict[int, float], *, layout: Layout = HOME, sources: tuple[int, ...] = ()) -> PlanStatus:
    """A plan of epoch 1, decided and not seen applied."""
    plan = PlanRecord(
        plan_id="p1",
        job_id="job",
        incident_id=None,
        mode=PlanMode.BOUNDARY,
        epoch=1,
        layout=layout,
        actions=(),
        alternatives=(),
        idle_seconds=1.0,
        predicted_seconds=0.8,
        cost_seconds=0.1,
        proportional_bound=0.9,
        reason="",
        solve_seconds=0.0,
        proposed_at=START,
        throughputs=throughputs,
    )
    return PlanStatus(
        plan=plan,
        state=PlanState.COMMITTED,
        at=START,
        first_iteration=None,
        measured_seconds=None,
        decision={"sources": sources},
        detail="",
    )


def test_what_a_decided_plan_is_for_survives_the_restart_that_finishes_it() -> None:
    speeds = {rank: 0.5 if rank == 3 else 1.0 for rank in HOME.ranks}
    status = committed(speeds)
    again = resumed_job(history(layouts={0: HOME, 1: HOME}, plans=(status,), planned_for={1: speeds}))
    assert again.decided is status
    assert not again.must_recover
    assert (again.job.epoch, again.job.answered) == (0, {})
    assert flight_again(status.plan).throughputs == speeds


def test_a_decided_plan_that_reads_from_a_process_that_died_is_not_finished() -> None:
    half = replace(HOME, replicas=HOME.replicas[:1])
    death = verdict(VerdictKind.FAIL_STOP, 7, 0.0)
    incident = next(each for each in on_verdict(job(), death).records if isinstance(each, IncidentRecord))
    for sources, is_finished in ((half.ranks, True), (HOME.ranks, False)):
        status = committed({}, layout=half, sources=sources)
        again = resumed_job(history((death,), layouts={0: HOME, 1: half}, plans=(status,), incidents=(incident,)))
        assert (again.decided is status, again.must_recover) == (is_finished, not is_finished)


def test_a_decided_plan_is_not_finished_with_a_later_process_than_it_was_made_for() -> None:
    half = replace(HOME, replicas=HOME.replicas[:1])
    ranks = [registration(rank) for rank in HOME.ranks]
    ranks += [registration(7, 1, after=-1.0), registration(7, 2, after=1.0)]
    told = [
        (VerdictKind.FAIL_STOP, 0),
        (VerdictKind.REJOINED, 1),
        (VerdictKind.FAIL_STOP, 1),
        (VerdictKind.REJOINED, 2),
    ]
    verdicts = tuple(verdict(kind, 7, 0.0, incarnation=incarnation) for kind, incarnation in told)
    status = committed({})
    for later, is_finished in ((0, True), (1, False)):
        past = history(
            verdicts[: 2 + 2 * later],
            ranks=tuple(ranks[: len(ranks) - 1 + later]),
            layouts={0: half, 1: HOME},
            plans=(status,),
        )
        again = resumed_job(past)
        assert again.job.ranks[7].incarnation == 1 + later
        assert (again.decided is status, again.must_recover) == (is_finished, not is_finished)
        assert again.superseded == (() if is_finished else (status,))


def test_a_job_whose_loop_cannot_be_reshaped_is_known_as_such_after_a_restart() -> None:
    ranks = tuple(registration(rank, can_reshape=rank != 5) for rank in HOME.ranks)
    assert not resumed_job(history(ranks=ranks)).job.can_reshape
    assert resumed_job(history()).job.can_reshape


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What is told of the processes of one rank: each registers at some time, or not before the crash, and the detector
    tells of each start and end that it hears of, the end of a process before the start of the next."""
    told = []
    for incarnation in range(draw(st.integers(1, 4))):
        told += [(kind, incarnation) for kind in ("rejoined", "fail_stop") if kind == "fail_stop" or incarnation]
    told = told[: draw(st.integers(0, len(told)))]
    told = [one for one in told if one[0] == "fail_stop" or draw(st.booleans())]
    for incarnation in range(1, 1 + draw(st.integers(0, 3))):
        earlier = next((at for at, one in enumerate(told) if one == ("registers", incarnation - 1)), -1)
        told.insert(draw(st.integers(earlier + 1, len(told))), ("registers", incarnation))
    return told


@given(lives())
def test_whatever_was_told_of_processes_a_restart_counts_on_the_same_ones_and_knows_the_same_newcomers(
    told: list[tuple[str, int]],
) -> None:
    known, ranks = job(), [registration(rank) for rank in HOME.ranks]
    verdicts, incidents = list[VerdictRecord](), list[IncidentRecord]()
    for number, (what, incarnation) in enumerate(told):
        if what == "registers":
            ranks.append(registration(5, incarnation))
            known = on_rank_registered(known, ranks[-1])
        else:
            verdicts.append(verdict(what, 5, float(number), incarnation=incarnation))
            outcome = on_verdict(known, verdicts[-1])
            known = outcome.job
            incidents += [each for each in outcome.records if isinstance(each, IncidentRecord)]
    again = resumed_job(history(tuple(verdicts), ranks=tuple(ranks), incidents=tuple(incidents))).job
    counted, newcomer = known.ranks[5], known.newcomers.get(5)
    counted_again, newcomer_again = again.ranks[5], again.newcomers.get(5)
    assert (counted_again.incarnation, counted_again.alive) == (counted.incarnation, counted.alive)
    assert newcomer_again == newcomer
