"""A small fleet's past, written by ``evenkeel.history.writes`` only: what ``docs/sql.md`` shows and the tests read.

Job ``bert`` (tenant ``research``) trained for a day in the first week; job ``llama`` (default tenant) for nine days,
with a slow device, a death and a replacement, a second slow spell of the same device, and a hang that nobody solved.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history import writes
from evenkeel.history.records import (
    ActionRecord,
    AlternativeRecord,
    CulpritRecord,
    EvidenceRecord,
    IncidentEventRecord,
    IncidentRecord,
    JobRecord,
    PlanEventRecord,
    PlanRecord,
    RankRecord,
    VerdictRecord,
)
from evenkeel.history.stream_records import RollupRecord
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanMode, PlanState, VerdictKind
from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec

START = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
LLAMA_TOKEN = "llama-token-0123456789"
BERT_TOKEN = "bert-token-0123456789"
MODEL = ModelSpec(
    blocks=tuple(
        BlockCost(forward_flops_per_token=1.5e9, forward_flops_per_squared_length=4096.0, max_width=8) for _ in range(4)
    ),
    activation_bytes_per_token=8192,
)
FULL = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=2, num_micro_batches=8)


def layout_with(*, shares: tuple[int, int] = (1, 1), ranks: tuple[int, ...] = (4, 5)) -> Layout:
    """The full layout with another first stage of replica 1: other shares, or fewer ranks."""
    first = Stage(first_block=0, stop_block=2, ranks=ranks, shares=shares[: len(ranks)])
    return Layout(
        num_blocks=4,
        replicas=(FULL.replicas[0], Replica(stages=(first, FULL.replicas[1].stages[1]), num_micro_batches=4)),
    )


def job(job_id: str, token: str, *, tenant: str = "default", name: str = "") -> JobRecord:
    return JobRecord(
        job_id=job_id,
        tenant=tenant,
        name=name or job_id,
        model=MODEL,
        layout=FULL,
        job_token=token,
        registered_at=START,
    )


def rank(job_id: str, number: int, at: datetime, *, incarnation: int = 0, prefix: str = "node") -> RankRecord:
    return RankRecord(
        job_id=job_id,
        rank=number,
        incarnation=incarnation,
        node=f"{prefix}-{'ab'[number // 4]}",
        device=f"gpu{number % 4}",
        address=f"10.0.0.{number // 4 + 1}:{40000 + number + 100 * incarnation}",
        process_id=1000 + number + 100 * incarnation,
        registered_at=at,
    )


def culprit(process: RankRecord) -> CulpritRecord:
    return CulpritRecord(rank=process.rank, incarnation=process.incarnation, node=process.node, device=process.device)


def verdict(
    verdict_id: str, kind: VerdictKind, who: RankRecord, at: datetime, iteration: int, throughput: float
) -> VerdictRecord:
    return VerdictRecord(
        verdict_id=verdict_id,
        job_id=who.job_id,
        kind=kind,
        culprits=(culprit(who),),
        throughput=throughput,
        throughput_margin=0.01,
        confidence=0.999,
        first_iteration=iteration,
        decided_iteration=iteration + 2,
        decided_at=at,
        evidence=(
            EvidenceRecord(
                name="compute seconds against peers", value=2.0, unit="ratio", text="needs twice its peers' time"
            ),
        ),
    )


def incident(incident_id: str, first: VerdictRecord) -> IncidentRecord:
    return IncidentRecord(
        incident_id=incident_id,
        job_id=first.job_id,
        verdict_id=first.verdict_id,
        kind=first.kind,
        culprits=first.culprits,
        first_iteration=first.first_iteration,
        throughput=first.throughput,
        opened_at=first.decided_at,
    )


def plan(
    plan_id: str,
    incident_id: str,
    at: datetime,
    *,
    job_id: str = "llama",
    epoch: int,
    layout: Layout,
    mode: PlanMode = PlanMode.BOUNDARY,
    idle: float = 0.0,
    predicted: float = 1.0,
    bound: float = 1.0,
    lever: str = "tensor_width",
    description: str = "stage 0 of replica 1: shares 1:1 to 2:1",
    reason: str = "rank 5 computes at half speed: half the width keeps its peers from waiting",
) -> PlanRecord:
    return PlanRecord(
        plan_id=plan_id,
        job_id=job_id,
        incident_id=incident_id,
        mode=mode,
        epoch=epoch,
        layout=layout,
        actions=(ActionRecord(lever=lever, description=description, gain_seconds=max(idle - predicted, 0.0)),),
        alternatives=(
            AlternativeRecord(
                name="micro_batch_quota",
                predicted_seconds=predicted * 1.2,
                reason=f"{0.2 * predicted:.2f} s slower per iteration",
            ),
        ),
        idle_seconds=idle,
        predicted_seconds=predicted,
        cost_seconds=0.5,
        proportional_bound=bound,
        reason=reason,
        solve_seconds=0.004,
        proposed_at=at,
    )


def life(
    of: PlanRecord, measured: float, *, first_iteration: int, apply_seconds: float = 0.4
) -> Sequence[PlanEventRecord]:
    """The events of a plan that went well: committed, applied and measured."""
    committed = of.proposed_at + timedelta(seconds=0.05)
    applied = committed + timedelta(seconds=apply_seconds)
    return (
        PlanEventRecord(
            plan_id=of.plan_id, state=PlanState.COMMITTED, at=committed, decision={"steps_applied": first_iteration}
        ),
        PlanEventRecord(plan_id=of.plan_id, state=PlanState.APPLIED, at=applied, first_iteration=first_iteration),
        PlanEventRecord(
            plan_id=of.plan_id,
            state=PlanState.MEASURED,
            at=applied + timedelta(seconds=20),
            measured_seconds=measured,
        ),
    )


async def record_life(connection: AsyncConnection, of: PlanRecord, measured: float, *, first_iteration: int) -> None:
    await writes.record_plan(connection, of)
    for event in life(of, measured, first_iteration=first_iteration):
        await writes.append_plan_event(connection, event)


async def resolve(connection: AsyncConnection, incident_id: str, at: datetime, lost: float, detail: str) -> None:
    await writes.append_incident_event(
        connection,
        IncidentEventRecord(
            incident_id=incident_id, kind=IncidentEventKind.RESOLVED, at=at, lost_seconds=lost, detail=detail
        ),
    )


async def seed(connection: AsyncConnection) -> None:
    """Write all of it, twice over: the second time must change nothing."""
    for _ in range(2):
        await _bert(connection)
        await _llama_first_week(connection)
        await _llama_second_week(connection)


async def _bert(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("bert", BERT_TOKEN, tenant="research", name="BERT for the archive"))
    for number in range(8):
        await writes.register_ranks(connection, [rank("bert", number, START, prefix="lab")])
    at = START + timedelta(hours=3)
    slow = verdict("bert-v1", VerdictKind.COMPUTE_SLOW, rank("bert", 1, START, prefix="lab"), at, 5400, 0.8)
    await writes.record_verdict(connection, slow)
    await writes.open_incident(connection, incident("bert-i1", slow))
    await resolve(connection, "bert-i1", at + timedelta(hours=1), 30.0, "healthy again")
    await writes.set_job_state(connection, "bert", JobState.FINISHED, START + timedelta(days=1))


async def _llama_first_week(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("llama", LLAMA_TOKEN, name="Llama 7B"))
    for number in range(8):
        await writes.register_ranks(connection, [rank("llama", number, START + timedelta(seconds=number))])
    await writes.insert_rollups(connection, [rollup(number) for number in range(8)])

    at = START + timedelta(hours=1)
    slow = verdict("v1", VerdictKind.COMPUTE_SLOW, rank("llama", 5, START), at, 3600, 0.5)
    await writes.record_verdict(connection, slow)
    await writes.open_incident(connection, incident("i1", slow))
    shrink = plan(
        "p1", "i1", at + timedelta(seconds=0.1), epoch=1, layout=layout_with(shares=(2, 1)), idle=1.9, predicted=1.25,
        bound=0.9375,
    )  # fmt: skip
    await record_life(connection, shrink, 1.29, first_iteration=3604)
    await writes.append_incident_event(
        connection,
        IncidentEventRecord(
            incident_id="i1",
            kind=IncidentEventKind.LOSS,
            reference="3700",
            at=at + timedelta(minutes=2),
            lost_seconds=35.0,
        ),
    )
    healthy = at + timedelta(hours=2)
    well = verdict("v2", VerdictKind.RECOVERED, rank("llama", 5, START), healthy, 9000, 1.0)
    await writes.record_verdict(connection, well)
    back = plan(
        "p2", "i1", healthy + timedelta(seconds=0.1), epoch=2, layout=FULL, idle=1.29, predicted=1.0,
        description="stage 0 of replica 1: shares 2:1 to 1:1", reason="rank 5 is healthy again",
    )  # fmt: skip
    await record_life(connection, back, 1.01, first_iteration=9003)
    await resolve(connection, "i1", healthy + timedelta(seconds=30), 1620.0, "healthy again")

    died = START + timedelta(days=1, hours=2)
    dead = verdict("v3", VerdictKind.FAIL_STOP, rank("llama", 2, START), died, 86_000, 0.0)
    await writes.record_verdict(connection, dead)
    await writes.open_incident(connection, incident("i2", dead))
    go_on = plan(
        "p3", "i2", died + timedelta(seconds=0.1), epoch=3, layout=_without_rank_2(), predicted=1.3, bound=0.875,
        mode=PlanMode.RECOVER, description="stage 1 of replica 0: rank 3 alone", reason="rank 2 is dead",
    )  # fmt: skip
    await record_life(connection, go_on, 1.37, first_iteration=86_000)
    replaced = died + timedelta(minutes=5)
    again = rank("llama", 2, replaced, incarnation=1)
    await writes.register_ranks(connection, [again])
    rejoined = verdict("v4", VerdictKind.REJOINED, again, replaced + timedelta(seconds=1), 86_210, 1.0)
    await writes.record_verdict(connection, rejoined)
    whole = plan(
        "p4", "i2", replaced + timedelta(seconds=1.1), epoch=4, layout=FULL, idle=1.37, predicted=1.0, lever="rejoin",
        description="rank 2 back in stage 1 of replica 0", reason="rank 2 has a new process",
    )  # fmt: skip
    await record_life(connection, whole, 1.0, first_iteration=86_213)
    await resolve(connection, "i2", replaced + timedelta(seconds=30), 81.5, "replaced")


async def _llama_second_week(connection: AsyncConnection) -> None:
    at = START + timedelta(days=7, hours=1)
    slow = verdict("v5", VerdictKind.COMPUTE_SLOW, rank("llama", 5, START), at, 600_000, 0.7)
    await writes.record_verdict(connection, slow)
    await writes.open_incident(connection, incident("i3", slow))
    # Given up: the device got well before the ranks had answered.
    shrink = plan(
        "p5", "i3", at + timedelta(seconds=0.1), epoch=5, layout=layout_with(shares=(3, 2)), idle=1.4, predicted=1.1,
        bound=0.9625, description="stage 0 of replica 1: shares 1:1 to 3:2", reason="rank 5 computes at 0.7",
    )  # fmt: skip
    await writes.record_plan(connection, shrink)
    await writes.append_plan_event(
        connection,
        PlanEventRecord(
            plan_id="p5",
            state=PlanState.ABORTED,
            at=at + timedelta(seconds=2),
            detail="rank 5 recovered before all ranks had accepted",
        ),
    )
    await resolve(connection, "i3", at + timedelta(seconds=3), 4.0, "healthy again")

    stuck = START + timedelta(days=8, hours=6)
    hang = verdict("v6", VerdictKind.HANG, rank("llama", 7, START), stuck, 690_000, 0.0)
    await writes.record_verdict(connection, hang)
    await writes.open_incident(connection, incident("i4", hang))
    await writes.append_incident_event(
        connection,
        IncidentEventRecord(
            incident_id="i4",
            kind=IncidentEventKind.LOSS,
            reference="690002",
            at=stuck + timedelta(seconds=10),
            lost_seconds=10.0,
            detail="no plan yet",
        ),
    )
    await writes.set_job_state(connection, "llama", JobState.STUCK, stuck + timedelta(seconds=10), "no layout fits")


def _without_rank_2() -> Layout:
    alone = Stage(first_block=2, stop_block=4, ranks=(3,), shares=(1,))
    first, second = FULL.replicas
    return Layout(
        num_blocks=4,
        replicas=(
            Replica(stages=(first.stages[0], alone), num_micro_batches=3),
            Replica(stages=second.stages, num_micro_batches=5),
        ),
    )


def rollup(number: int, *, job_id: str = "llama", first_iteration: int = 0) -> RollupRecord:
    process = rank(job_id, number, START)
    return RollupRecord(
        job_id=job_id,
        rank=number,
        incarnation=0,
        epoch=0,
        first_iteration=first_iteration,
        stop_iteration=first_iteration + 100,
        num_iterations=100,
        node=process.node,
        device=process.device,
        started_at=START + timedelta(seconds=first_iteration),
        wall_seconds=1.0,
        wall_seconds_min=0.98,
        wall_seconds_max=1.06,
        forward_seconds=0.25,
        backward_seconds=0.5,
        optimizer_seconds=0.02,
        data_seconds=0.01,
        tensor_wait_seconds=0.05,
        pipeline_wait_seconds=0.1,
        gradient_wait_seconds=0.05,
        vote_wait_seconds=0.02,
        tokens=3_276_800,
        sum_of_squares=1.1e10,
        loss=2.31,
        peak_memory_bytes=61_000_000_000,
    )
