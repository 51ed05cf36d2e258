"""From the public protobuf messages to what the run log keeps. Pure; a message that cannot be read raises."""

from collections.abc import Iterable, Iterator

import numpy as np

from evenkeel.contracts.batches import Batches, read_batches
from evenkeel.contracts.columns import HAS_LOSS
from evenkeel.contracts.topics import BATCHES, PLANS, PROFILES, VERDICTS
from evenkeel.demo.observed.run_log import (
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
from evenkeel.telemetry.v2 import process_pb2
from evenkeel.telemetry.v2.batch_pb2 import MARK_RESHAPE, Batch


def add_message(log: RunLog, topic: str, value: bytes, received_at: float) -> None:
    """Parse one record of a topic and add what it says; records of other jobs are left out.

    Raises:
        google.protobuf.message.DecodeError: The bytes are not the topic's message.
        layouts.layout.LayoutError: A plan carries an impossible layout.
    """
    if topic == BATCHES.name:
        batch = Batch.FromString(value)
        if list(batch.job_id) == [log.job_id]:
            log.num_dropped[batch.rank[0], batch.incarnation[0]] = batch.num_dropped[0]
            log.extend(_samples(batch))
            log.extend(_processes(batch, received_at))
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


def _samples(batch: Batch) -> Iterator[RankSample]:
    told = read_batches(batch)
    per_token, per_square, multiple = (
        float(getattr(told, name)[0])
        for name in ("forward_flops_per_token", "forward_flops_per_squared_length", "backward_multiple")
    )
    ends = np.cumsum(told.num_listed).tolist()
    for row, end in enumerate(ends):
        listed = range(end - int(told.num_listed[row]), end)
        forward_flops = per_token * float(told.tokens[row]) + per_square * float(told.sum_of_squares[row])
        yield RankSample(
            rank=int(told.rank[0]),
            incarnation=int(told.incarnation[0]),
            iteration=int(told.iteration[row]),
            epoch=int(told.epoch[0]),
            started_at=float(told.started_at_unix_seconds[row]),
            wall_seconds=float(told.wall_seconds[row]),
            compute_seconds=float(told.forward_seconds[row] + told.backward_seconds[row]),
            flops=forward_flops * (1 + multiple),
            replica=int(told.replica[0]),
            stage=int(told.stage[0]),
            shard=int(told.shard[0]),
            micro_batches=_listed(told, [place for place in listed if not told.listed_kept[place]]),
            kept_micro_batches=_listed(told, [place for place in listed if told.listed_kept[place]]),
            loss=float(told.loss[row]) if told.flags[row] & HAS_LOSS else None,
            reshaped=bool(told.mark[row] == MARK_RESHAPE),
        )


def _listed(told: Batches, places: Iterable[int]) -> tuple[MicroBatchSeen, ...]:
    return tuple(
        MicroBatchSeen(
            index=int(told.listed_index[place]),
            tokens=int(told.listed_tokens[place]),
            sum_of_squares=float(told.listed_squares[place]),
        )
        for place in places
    )


def _processes(batch: Batch, received_at: float) -> Iterator[ProcessSeen]:
    for event in batch.events:
        name = process_pb2.ProcessEventKind.Name(event.kind)
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
