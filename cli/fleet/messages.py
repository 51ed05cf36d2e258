"""Messages of the fleet API as rows: plain values with stable names, for tables and JSON.

One walk makes them: fields keep their names, enums become words, moments RFC 3339, and what is not set null.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from evenkeel.cli.terminal.output import rfc3339
from evenkeel.common.v1 import layout_pb2
from evenkeel.detector.v1 import detector_pb2
from evenkeel.scheduler.v1 import scheduler_pb2


def job_row(job: scheduler_pb2.Job) -> dict[str, Any]:
    """A job."""
    alive = [rank for rank in job.ranks if rank.alive]
    return {
        **_row(job, "job_id", "tenant", "name", "state"),
        # Only its processes can say, once they have registered.
        "reshapable": not job.cannot_reshape if any(rank.address for rank in job.ranks) else None,
        "epoch": job.epoch,
        "ranks": len(job.ranks),
        "ranks_alive": len(alive) if _is_heard(job) else None,
        "ranks_training": len(job.standing.training),
        "slowest_throughput": min((rank.throughput for rank in alive), default=None),
        "proportional_bound": job.proportional_bound,
        "layout": layout_text(job.layout),
        "problem": job.problem or None,
        "standing": job.standing.summary,
        **_row(job, "registered_at"),
    }


def standing_row(standing: scheduler_pb2.Standing) -> dict[str, Any]:
    """What a job's ranks do."""
    return _row(standing, "training", "idle", "joining", "gone", "not_survived", "stuck", "summary")


def rank_rows(job: scheduler_pb2.Job) -> list[dict[str, Any]]:
    """The ranks of a job, ascending."""
    rows = [_row(rank) for rank in sorted(job.ranks, key=lambda rank: rank.rank)]
    return rows if _is_heard(job) else [{**row, "alive": None if row["alive"] else False} for row in rows]


def _is_heard(job: scheduler_pb2.Job) -> bool:
    """Where nothing is heard of a job nobody knows which of its ranks are alive."""
    return job.standing.stuck.reason != scheduler_pb2.STUCK_REASON_UNHEARD


def incident_row(incident: scheduler_pb2.Incident) -> dict[str, Any]:
    """An incident."""
    return _row(incident)


def plan_row(plan: scheduler_pb2.Plan) -> dict[str, Any]:
    """A plan, with what it beat."""
    measured_seconds = plan.measured_seconds or None
    return {**_row(plan), "levers": [action.lever for action in plan.actions], "measured_seconds": measured_seconds}


def verdict_row(verdict: detector_pb2.Verdict) -> dict[str, Any]:
    """A verdict."""
    row = _row(verdict)
    decided_at, facts = row.pop("decided_at_unix_seconds"), row.pop("evidence")
    return {
        **row,
        "decided_at": rfc3339(datetime.fromtimestamp(decided_at, UTC)),
        "evidence": [each["text"] for each in facts],
        "facts": facts,
    }


def verdict_kinds() -> list[str]:
    """The kinds of verdicts that this version knows."""
    kinds = detector_pb2.VerdictKind.DESCRIPTOR
    return [_word(kinds, each.number) for each in kinds.values if each.number]


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


_IN_OTHER_WORDS: Mapping[type[Message], Callable[[Any], Any]] = {
    Timestamp: lambda moment: rfc3339(moment.ToDatetime(tzinfo=UTC)),
    detector_pb2.Culprit: culprit_text,
    layout_pb2.Layout: layout_text,
    scheduler_pb2.Loss: lambda loss: list(loss.units),
}


def _row(message: Message, *names: str) -> dict[str, Any]:
    """These fields of a message, or all of them."""
    fields = message.DESCRIPTOR.fields_by_name
    return {name: _value(message, fields[name]) for name in names or fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if isinstance(value, int | float | str):
        return value if field.enum_type is None else _word(field.enum_type, int(value))
    if isinstance(value, Message):
        return _said(value) if message.HasField(field.name) else None
    return [_said(each) if isinstance(each, Message) else each for each in value]


def _said(message: Message) -> Any:
    words: Callable[[Any], Any] = _IN_OTHER_WORDS.get(type(message), _row)
    return words(message)


def _word(words: EnumDescriptor, number: int) -> str:
    """The word for an enum's number; a number from a newer version than this one stays a number."""
    known = words.values_by_number.get(number)
    prefix = words.values[0].name.removesuffix("UNSPECIFIED")
    return str(number) if known is None else known.name.removeprefix(prefix).lower()
