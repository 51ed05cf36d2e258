"""Messages of the fleet API as rows: plain values with stable names, for tables and JSON."""

from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from evenkeel.cli.terminal.output import rfc3339
from evenkeel.common.v1 import layout_pb2
from evenkeel.detector.v1 import detector_pb2
from evenkeel.scheduler.v1 import scheduler_pb2


def job_row(job: scheduler_pb2.Job) -> dict[str, Any]:
    """A job."""
    alive = [rank for rank in job.ranks if rank.alive]
    return {
        "job_id": job.job_id,
        "tenant": job.tenant,
        "name": job.name,
        "state": _word(scheduler_pb2.JobState, job.state, "JOB_STATE_"),
        # Only its processes can say, once they have registered.
        "reshapable": not job.cannot_reshape if any(rank.address for rank in job.ranks) else None,
        "epoch": job.epoch,
        "ranks": len(job.ranks),
        "ranks_alive": len(alive),
        "ranks_training": len(job.standing.training),
        "slowest_throughput": min((rank.throughput for rank in alive), default=None),
        "proportional_bound": job.proportional_bound,
        "layout": layout_text(job.layout),
        "problem": job.problem or None,
        "standing": job.standing.summary,
        "registered_at": rfc3339(_moment(job, "registered_at", job.registered_at)),
    }


def standing_row(standing: scheduler_pb2.Standing) -> dict[str, Any]:
    """What a job's ranks do."""
    stuck = standing.stuck
    return {
        "training": list(standing.training),
        "idle": [{"reason": each.reason, "ranks": list(each.ranks)} for each in standing.idle],
        "joining": list(standing.joining),
        "gone": list(standing.gone),
        "not_survived": [list(loss.units) for loss in standing.not_survived],
        "stuck": {
            "reason": _word(scheduler_pb2.StuckReason, stuck.reason, "STUCK_REASON_"),
            "detail": stuck.detail,
            "since": rfc3339(_moment(stuck, "since", stuck.since)),
            "frees_by": stuck.frees_by,
        }
        if standing.HasField("stuck")
        else None,
        "summary": standing.summary,
    }


def rank_row(rank: scheduler_pb2.Rank) -> dict[str, Any]:
    """A rank of a job."""
    return {
        "rank": rank.rank,
        "incarnation": rank.incarnation,
        "node": rank.node,
        "device": rank.device,
        "alive": rank.alive,
        "throughput": rank.throughput,
        "address": rank.address,
    }


def incident_row(incident: scheduler_pb2.Incident) -> dict[str, Any]:
    """An incident."""
    return {
        "incident_id": incident.incident_id,
        "job_id": incident.job_id,
        "kind": _word(detector_pb2.VerdictKind, incident.kind, "VERDICT_KIND_"),
        "culprits": [culprit_text(culprit) for culprit in incident.culprits],
        "throughput": incident.throughput,
        "first_iteration": incident.first_iteration,
        "opened_at": rfc3339(_moment(incident, "opened_at", incident.opened_at)),
        "resolved_at": rfc3339(_moment(incident, "resolved_at", incident.resolved_at)),
        "lost_seconds": incident.lost_seconds,
        "plan_ids": list(incident.plan_ids),
        "verdict_id": incident.verdict_id,
        "notes": list(incident.notes),
    }


def plan_row(plan: scheduler_pb2.Plan) -> dict[str, Any]:
    """A plan, with what it beat."""
    return {
        "plan_id": plan.plan_id,
        "job_id": plan.job_id,
        "incident_id": plan.incident_id,
        "state": _word(scheduler_pb2.PlanState, plan.state, "PLAN_STATE_"),
        "epoch": plan.epoch,
        "levers": [action.lever for action in plan.actions],
        "actions": [
            {"lever": action.lever, "description": action.description, "gain_seconds": action.gain_seconds}
            for action in plan.actions
        ],
        "idle_seconds": plan.idle_seconds,
        "predicted_seconds": plan.predicted_seconds,
        "measured_seconds": plan.measured_seconds or None,
        "cost_seconds": plan.cost_seconds,
        "proportional_bound": plan.proportional_bound,
        "first_iteration": plan.first_iteration,
        "solve_seconds": plan.solve_seconds,
        "layout": layout_text(plan.layout),
        "alternatives": [
            {"name": each.name, "predicted_seconds": each.predicted_seconds, "reason": each.reason}
            for each in plan.alternatives
        ],
        "reason": plan.reason,
        "at": rfc3339(_moment(plan, "at", plan.at)),
    }


def verdict_row(verdict: detector_pb2.Verdict) -> dict[str, Any]:
    """A verdict."""
    return {
        "verdict_id": verdict.verdict_id,
        "job_id": verdict.job_id,
        "kind": _word(detector_pb2.VerdictKind, verdict.kind, "VERDICT_KIND_"),
        "culprits": [culprit_text(culprit) for culprit in verdict.culprits],
        "throughput": verdict.throughput,
        "throughput_margin": verdict.throughput_margin,
        "confidence": verdict.confidence,
        "first_iteration": verdict.first_iteration,
        "decided_iteration": verdict.decided_iteration,
        "decided_at": rfc3339(datetime.fromtimestamp(verdict.decided_at_unix_seconds, UTC)),
        "evidence": [each.text for each in verdict.evidence],
        "facts": [
            {"name": each.name, "value": each.value, "unit": each.unit, "text": each.text} for each in verdict.evidence
        ],
    }


def verdict_kinds() -> list[str]:
    """The kinds of verdicts that this version knows."""
    values = [value for value in detector_pb2.VerdictKind.values() if value != detector_pb2.VERDICT_KIND_UNSPECIFIED]
    return [_word(detector_pb2.VerdictKind, value, "VERDICT_KIND_") for value in values]


def culprit_text(culprit: detector_pb2.Culprit) -> str:
    """Who it is, in a few words."""
    place = "/".join(part for part in (culprit.node, culprit.device) if part)
    return f"rank {culprit.rank}" + (f" ({place})" if place else "")


def layout_text(layout: layout_pb2.Layout) -> str:
    """A layout in one line: for each replica its quota, and for each stage its blocks and the ranks that share it.

    Routes as micro-batch.stage>replica.
    """
    replicas = []
    for replica in layout.replicas:
        stages = []
        for stage in replica.stages:
            shares = zip(stage.ranks, stage.shares, strict=False)
            equal = len(set(stage.shares)) <= 1
            ranks = ",".join(str(rank) if equal else f"{rank}:{share}" for rank, share in shares)
            stages.append(f"{stage.first_block}-{stage.stop_block - 1}[{ranks}]")
        replicas.append(f"{replica.num_micro_batches}x " + " ".join(stages))
    standbys = ",".join(str(rank) for rank in layout.standbys)
    routes = ",".join(f"{route.micro_batch}.{route.stage}>{route.replica}" for route in layout.routes)
    ends = [f" | standby {standbys}"] * bool(standbys) + [f" | routed {routes}"] * bool(routes)
    return " | ".join(replicas) + "".join(ends)


def _word(words: Any, number: int, prefix: str) -> str:
    """The word for an enum's number; a number from a newer version than this one stays a number."""
    name: str = words.Name(number) if number in words.values() else str(number)
    return name.removeprefix(prefix).lower()


def _moment(message: Any, field: str, value: Timestamp) -> datetime | None:
    return value.ToDatetime(tzinfo=UTC) if message.HasField(field) else None
