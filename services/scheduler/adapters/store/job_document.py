"""A job's working state as the history keeps it, and back: who goes on with a job decodes it and infers nothing.

Layouts, plans and verdicts have rows of their own and are only referred to; so has each rank, and of these only those
that have changed are written. Not kept is what comes again by itself: what ranks say, streams that broke, timers, and
what the planner was asked.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from evenkeel.history.records import PlanStatus, RankExitRecord, StoredJob
from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.cost_model import Workload
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import AppliedPlan, PlanInFlight, RankInfo
from evenkeel.services.scheduler.jobs.job import Job, Process
from evenkeel.services.scheduler.jobs.machine import registered_job
from evenkeel.services.scheduler.plans.records import decision_from_document

_OF_JOB = ("must_recover", "seen_to_end", "advised")
_AS_REGISTERED = ("job_id", "tenant", "name", "model", "registered_at", "home", "finished")
_IN_OWN_ROWS = ("layout", "layouts", "ranks", "newcomers", "exits", "seen", "flight", "unmeasured")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """The processes of one rank: who counts now, who waits, and how those ended that have."""

    holder: RankInfo
    newcomer: RankInfo | None = None
    exits: tuple[RankExitRecord, ...] = ()


def _codecs(owner: type, names: tuple[str, ...]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(owner)
    return {name: TypeAdapter(hints[name]) for name in names}


_JOB = _codecs(Job, _OF_JOB)
_KNOWN = _codecs(
    JobKnowledge,
    tuple(each.name for each in fields(JobKnowledge) if each.name not in (*_AS_REGISTERED, *_IN_OWN_ROWS)),
)
_WORKLOAD: TypeAdapter[Workload | None] = TypeAdapter(Workload | None)
_PARTICIPANTS: TypeAdapter[frozenset[Process]] = TypeAdapter(frozenset[Process])
_SEAT = TypeAdapter(_Seat)


def saved_state(job: Job, before: Job, version: int) -> WorkingStateRecord:
    """What is saved of a job.

    Args:
        job: The job.
        before: The same as it was saved last, or as it was registered.
        version: One more than that had.
    """
    document: dict[str, Any] = {
        "job": {name: codec.dump_python(getattr(job, name), mode="json") for name, codec in _JOB.items()},
        "known": {name: codec.dump_python(getattr(job.known, name), mode="json") for name, codec in _KNOWN.items()},
    }
    plans = list[str]()
    if (applied := job.known.unmeasured) is not None:
        plans.append(applied.record.plan_id)
        workload = _WORKLOAD.dump_python(applied.workload, mode="json")
        document["unmeasured"] = {
            "plan_id": plans[-1],
            "first_iteration": applied.first_iteration,
            "workload": workload,
        }
    if (flight := job.known.flight) is not None:
        plans.append(flight.record.plan_id)
        participants = _PARTICIPANTS.dump_python(flight.participants, mode="json")
        document["flight"] = {"plan_id": plans[-1], "participants": participants}
    return WorkingStateRecord(
        job_id=job.known.job_id,
        version=version,
        save_id=uuid.uuid4().hex,
        document=document,
        plan_ids=tuple(plans),
        seats={rank: _SEAT.dump_python(seat, mode="json") for rank, seat in _new_seats(job.known, before.known)},
    )


def restored_job(stored: StoredJob, salt: str) -> Job:
    """A job as it was left; to be told that it :class:`~evenkeel.services.scheduler.jobs.events.Began`.

    Args:
        stored: What the history has of it.
        salt: See :class:`~evenkeel.services.scheduler.jobs.job.Job`.

    Raises:
        KeyError, ValueError: It is no such document, or something that it refers to is missing.
    """
    job = registered_job(stored.record, salt)
    if stored.state is None:
        return job
    document, layouts = stored.state.document, dict(stored.layouts)
    kept = _decoded(_KNOWN, document["known"])
    known = replace(
        job.known,
        **kept,
        **_from_seats({rank: _SEAT.validate_python(seat) for rank, seat in stored.state.seats.items()}, job.known),
        layout=layouts[kept["epoch"]],
        layouts=layouts,
        seen=stored.seen,
        flight=_flight(document["flight"], stored.plans, layouts) if "flight" in document else None,
        unmeasured=_applied(document["unmeasured"], stored.plans) if "unmeasured" in document else None,
    )
    return replace(job, **_decoded(_JOB, document["job"]), known=known)


def _decoded(codecs: Mapping[str, TypeAdapter[Any]], document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: codec.validate_python(document[name]) for name, codec in codecs.items()}


def _flight(
    document: Mapping[str, Any], plans: Mapping[str, PlanStatus], layouts: Mapping[int, Layout]
) -> PlanInFlight:
    status = plans[document["plan_id"]]
    return PlanInFlight(
        record=status.plan,
        participants=_PARTICIPANTS.validate_python(document["participants"]),
        decision=None if status.decision is None else decision_from_document(status.decision, layouts),
    )


def _applied(document: Mapping[str, Any], plans: Mapping[str, PlanStatus]) -> AppliedPlan:
    return AppliedPlan(
        record=plans[document["plan_id"]].plan,
        first_iteration=document["first_iteration"],
        workload=_WORKLOAD.validate_python(document["workload"]),
    )


def _new_seats(known: JobKnowledge, before: JobKnowledge) -> list[tuple[int, _Seat]]:
    if known.ranks is before.ranks and known.newcomers is before.newcomers and known.exits is before.exits:
        return []
    ended = {rank for rank, incarnation in known.exits if (rank, incarnation) not in before.exits}
    changed = [
        rank
        for rank, info in known.ranks.items()
        if info is not before.ranks.get(rank)
        or known.newcomers.get(rank) is not before.newcomers.get(rank)
        or rank in ended
    ]
    exits: dict[int, list[RankExitRecord]] = {rank: [] for rank in changed}
    for (rank, _), one in known.exits.items():
        if rank in exits:
            exits[rank].append(one)
    return [
        (rank, _Seat(holder=known.ranks[rank], newcomer=known.newcomers.get(rank), exits=tuple(exits[rank])))
        for rank in changed
    ]


def _from_seats(seats: Mapping[int, _Seat], known: JobKnowledge) -> dict[str, Any]:
    return {
        "ranks": {**known.ranks, **{rank: seat.holder for rank, seat in seats.items()}},
        "newcomers": {rank: seat.newcomer for rank, seat in seats.items() if seat.newcomer is not None},
        "exits": {(rank, one.incarnation): one for rank, seat in seats.items() for one in seat.exits},
    }
