"""The scheduler's records to and from protobuf: what the fleet API answers and what goes to the topic of plans.

Records and messages call their fields the same; what a message says in another way is given beside the record.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.records import (
    DEFAULT_TENANT,
    IncidentState,
    JobRecord,
    JobStatus,
    PlanStatus,
    RankExitRecord,
    RankRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts.codec import layout_from_proto, layout_to_proto, model_from_proto, model_to_proto
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.fleet_port import JobView

M = TypeVar("M", bound=Message)
R = TypeVar("R")


def to_proto(kind: type[M], /, *records: object, **said: Any) -> M:
    """A message: each field is what ``said`` has for it, or the first of the records that has one of this name."""
    left = [field for field in kind.DESCRIPTOR.fields if field.name not in said]
    return kind(**{field.name: _wire(field, _found(field.name, records)) for field in left}, **said)


def from_proto(kind: type[R], message: Message, /, **said: Any) -> R:
    """A record: each field is what ``said`` has for it, or what the message has under this name."""
    hashable: Any = kind
    hints = _hints(hashable)
    values = {name: _value(hint, getattr(message, name)) for name, hint in hints.items() if name not in said}
    return kind(**values, **said)


def number_of(enum: EnumDescriptor, word: str) -> int:
    """The number of a stored word; UNSPECIFIED for a word that this version does not know."""
    known = enum.values_by_name.get(enum.values[0].name.removesuffix("UNSPECIFIED") + word.upper())
    return 0 if known is None else int(known.number)


def timestamp(at: datetime) -> Timestamp:
    """A protobuf timestamp."""
    message = Timestamp()
    message.FromDatetime(at.astimezone(UTC))
    return message


_CONVERTERS: Mapping[type, Callable[[Any], Message]] = {
    Layout: layout_to_proto,
    ModelSpec: model_to_proto,
    datetime: timestamp,
}


def _found(name: str, records: tuple[object, ...]) -> Any:
    return getattr(next((record for record in records if hasattr(record, name)), records[0]), name)


def _wire(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return number_of(field.enum_type, value)
    if field.message_type is None or value is None:
        return value
    items = [_message(field, item) for item in (value if isinstance(value, tuple) else (value,))]
    return items if isinstance(value, tuple) else items[0]


def _message(field: Any, value: Any) -> Message:
    convert = _CONVERTERS.get(type(value))
    return to_proto(GetMessageClass(field.message_type), value) if convert is None else convert(value)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _value(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        return from_proto(hint, value)  # type: ignore[arg-type]
    if (items := get_args(hint)) and items[-1] is Ellipsis:
        return tuple([_value(items[0], item) for item in value])
    return value


# ---- what differs


def verdict_kind_from_proto(number: int) -> str:
    """The word of a verdict kind; a number that this version does not know keeps its number."""
    known = detector_pb2.VerdictKind.DESCRIPTOR.values_by_number.get(number)
    word = f"kind_{number}" if known is None else known.name.removeprefix("VERDICT_KIND_").lower()
    return VerdictKind(word) if word in frozenset(VerdictKind) else word


def verdict_to_proto(verdict: VerdictRecord) -> detector_pb2.Verdict:
    """A verdict as the detector publishes it."""
    return to_proto(detector_pb2.Verdict, verdict, decided_at_unix_seconds=verdict.decided_at.timestamp())


def verdict_from_proto(message: detector_pb2.Verdict) -> VerdictRecord:
    """A verdict as it is recorded.

    Raises:
        ValueError: Its time is none that a calendar knows.
    """
    try:
        decided_at = datetime.fromtimestamp(message.decided_at_unix_seconds, tz=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"decided_at_unix_seconds {message.decided_at_unix_seconds}: {error}") from error
    return from_proto(VerdictRecord, message, kind=verdict_kind_from_proto(message.kind), decided_at=decided_at)


def incident_to_proto(incident: IncidentState) -> pb.Incident:
    """An incident as it stands."""
    return to_proto(pb.Incident, incident)


def plan_to_proto(status: PlanStatus) -> pb.Plan:
    """A plan as it stands."""
    first_iteration = -1 if status.first_iteration is None else status.first_iteration
    return to_proto(pb.Plan, status, status.plan, first_iteration=first_iteration)


def job_to_proto(job: JobView) -> pb.Job:
    """A job as it is now."""
    standing = to_proto(
        pb.Standing,
        job.standing,
        idle=[pb.IdleRanks(reason=reason, ranks=ranks) for reason, ranks in job.standing.idle],
        not_survived=[pb.Loss(units=units) for units in job.standing.not_survived],
    )
    return to_proto(pb.Job, job, cannot_reshape=not job.can_reshape, standing=standing)


def job_status_to_proto(job: JobStatus) -> pb.Job:
    """A job that only the history knows: nothing of it is alive, as far as anybody can say."""
    return to_proto(
        pb.Job,
        job,
        ranks=[to_proto(pb.Rank, rank, alive=False, throughput=0.0) for rank in job.ranks],
        cannot_reshape=not all(rank.can_reshape for rank in job.ranks),
        standing=pb.Standing(num_ranks=job.num_devices + len(job.layout.standbys), summary=job.detail or job.state),
        proportional_bound=0.0,
        problem="",
    )


def job_from_request(request: pb.RegisterJobRequest, registered_at: datetime) -> JobRecord:
    """The job that a request describes.

    Raises:
        layouts.layout.LayoutError: The layout is unusable.
    """
    return from_proto(
        JobRecord,
        request,
        tenant=request.tenant or DEFAULT_TENANT,
        name=request.name or request.job_id,
        model=model_from_proto(request.model),
        layout=layout_from_proto(request.layout),
        registered_at=registered_at,
    )


def ranks_from_request(request: pb.RegisterRanksRequest, registered_at: datetime) -> list[RankRecord]:
    """The processes that a request describes."""
    return [
        from_proto(
            RankRecord,
            process,
            job_id=request.job_id,
            registered_at=registered_at,
            can_reshape=not process.cannot_reshape,
        )
        for process in request.processes
    ]


def exits_from_request(request: pb.ReportExitsRequest, now: datetime) -> list[RankExitRecord]:
    """The ends of processes that a request tells of."""
    return [
        from_proto(
            RankExitRecord,
            one,
            job_id=request.job_id,
            at=one.at.ToDatetime(tzinfo=UTC) if one.HasField("at") else now,
        )
        for one in request.exits
    ]
