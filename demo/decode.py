"""From the public protobuf messages to what the run log keeps. Pure; a message that cannot be read raises."""

from collections.abc import Iterable, Iterator

from evenkeel.contracts.topics import PLANS, PROFILES, RECORDS, VERDICTS
from evenkeel.demo.run_log import (
    ActionSeen,
    AlternativeSeen,
    CulpritSeen,
    MicroBatchSeen,
    PlanSeen,
    ProcessSeen,
    ProfileSeen,
    RankSample,
    RunLog,
    VerdictSeen,
)
from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.vocabulary import PlanState, VerdictKind
from evenkeel.layouts.codec import layout_from_proto
from evenkeel.scheduler.v1 import scheduler_pb2
from evenkeel.telemetry.v1 import telemetry_pb2


def add_message(log: RunLog, topic: str, value: bytes, received_at: float) -> None:
    """Parse one record of a topic and add what it says; records of other jobs are left out.

    Raises:
        google.protobuf.message.DecodeError: The bytes are not the topic's message.
        layouts.layout.LayoutError: A plan carries an impossible layout.
    """
    if topic == RECORDS.name:
        record = telemetry_pb2.Record.FromString(value)
        if record.job_id == log.job_id:
            log.num_dropped[record.rank, record.incarnation] = record.num_dropped
            log.extend(_samples(record))
            log.extend(_processes(record, received_at))
    elif topic == VERDICTS.name:
        verdict = detector_pb2.Verdict.FromString(value)
        if verdict.job_id == log.job_id:
            log.add_verdict(verdict_seen(verdict, received_at))
    elif topic == PROFILES.name:
        profile = detector_pb2.Profile.FromString(value)
        if profile.job_id == log.job_id:
            log.profiles.append(_profile(profile, received_at))
    elif topic == PLANS.name:
        plan = scheduler_pb2.Plan.FromString(value)
        if plan.job_id == log.job_id:
            log.add_plan(plan_seen(plan, received_at))


def _samples(record: telemetry_pb2.Record) -> Iterator[RankSample]:
    for sample in record.samples:
        position = sample.position
        forward_flops = sum(
            position.forward_flops_per_token * batch.tokens
            + position.forward_flops_per_squared_length * batch.sum_of_squares
            for batch in sample.micro_batches
        )
        yield RankSample(
            rank=record.rank,
            incarnation=record.incarnation,
            iteration=sample.iteration,
            epoch=sample.epoch,
            started_at=sample.started_at_unix_seconds,
            wall_seconds=sample.wall_seconds,
            compute_seconds=sample.compute.forward + sample.compute.backward,
            flops=forward_flops * (1 + position.backward_multiple),
            replica=position.replica,
            stage=position.stage,
            shard=position.shard,
            micro_batches=_batches(sample.micro_batches),
            kept_micro_batches=_batches(sample.kept_micro_batches),
            loss=sample.loss if sample.HasField("loss") else None,
            reshaped=sample.mark == telemetry_pb2.MARK_RESHAPE,
        )


def _batches(batches: Iterable[telemetry_pb2.MicroBatch]) -> tuple[MicroBatchSeen, ...]:
    return tuple(
        MicroBatchSeen(index=batch.index, tokens=batch.tokens, sum_of_squares=batch.sum_of_squares) for batch in batches
    )


def _processes(record: telemetry_pb2.Record, received_at: float) -> Iterator[ProcessSeen]:
    for event in record.events:
        name = telemetry_pb2.ProcessEventKind.Name(event.kind)
        yield ProcessSeen(
            kind=name.removeprefix("PROCESS_EVENT_KIND_").lower(),
            rank=event.rank,
            incarnation=event.incarnation,
            at=event.at_unix_seconds,
            received_at=received_at,
            detail=event.detail,
        )


def _profile(profile: detector_pb2.Profile, received_at: float) -> ProfileSeen:
    return ProfileSeen(
        iteration=profile.iteration,
        epoch=profile.epoch,
        iteration_seconds=profile.iteration_seconds,
        throughputs=tuple((entry.rank, entry.throughput) for entry in profile.throughputs),
        received_at=received_at,
    )


def verdict_seen(verdict: detector_pb2.Verdict, received_at: float) -> VerdictSeen:
    """What the log keeps of a verdict."""
    name = detector_pb2.VerdictKind.Name(verdict.kind)
    return VerdictSeen(
        verdict_id=verdict.verdict_id,
        kind=VerdictKind(name.removeprefix("VERDICT_KIND_").lower()),
        culprits=tuple(
            CulpritSeen(rank=culprit.rank, incarnation=culprit.incarnation, node=culprit.node, device=culprit.device)
            for culprit in verdict.culprits
        ),
        throughput=verdict.throughput,
        throughput_margin=verdict.throughput_margin,
        confidence=verdict.confidence,
        first_iteration=verdict.first_iteration,
        decided_iteration=verdict.decided_iteration,
        decided_at=verdict.decided_at_unix_seconds,
        received_at=received_at,
        evidence=tuple(fact.text or f"{fact.name}: {fact.value:.3g} {fact.unit}" for fact in verdict.evidence),
    )


def plan_seen(plan: scheduler_pb2.Plan, received_at: float) -> PlanSeen:
    """What the log keeps of a plan.

    Raises:
        layouts.layout.LayoutError: The plan's layout contradicts itself.
    """
    name = scheduler_pb2.PlanState.Name(plan.state)
    return PlanSeen(
        plan_id=plan.plan_id,
        incident_id=plan.incident_id,
        state=PlanState(name.removeprefix("PLAN_STATE_").lower()),
        epoch=plan.epoch,
        layout=layout_from_proto(plan.layout),
        actions=tuple(
            ActionSeen(lever=action.lever, description=action.description, gain_seconds=action.gain_seconds)
            for action in plan.actions
        ),
        idle_seconds=plan.idle_seconds,
        predicted_seconds=plan.predicted_seconds,
        measured_seconds=plan.measured_seconds,
        cost_seconds=plan.cost_seconds,
        proportional_bound=plan.proportional_bound,
        alternatives=tuple(
            AlternativeSeen(
                name=alternative.name,
                predicted_seconds=alternative.predicted_seconds,
                reason=alternative.reason,
            )
            for alternative in plan.alternatives
        ),
        reason=plan.reason,
        solve_seconds=plan.solve_seconds,
        at=plan.at.ToNanoseconds() / 1e9,
        received_at=received_at,
        first_iteration=plan.first_iteration,
    )
