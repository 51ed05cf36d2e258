"""A job's working state as the history keeps it, and back: who goes on with a job decodes it and infers nothing.

Layouts, plans and verdicts have rows of their own and are only referred to; so has each rank, and of these only those
that have changed are written. Not kept is what comes again by itself: what ranks say, streams that broke, when a
profile came, timers, and what the planner was asked.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from evenkeel.history.records import RankExitRecord, StoredJob
from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import AppliedPlan, PlanInFlight, RankInfo
from evenkeel.services.scheduler.jobs.job import Job
from evenkeel.services.scheduler.jobs.machine import registered_job
from evenkeel.services.scheduler.plans.records import decision_from_document

_AS_REGISTERED = ("job_id", "tenant", "name", "model", "registered_at", "finished")
_IN_OWN_ROWS = ("layouts", "ranks", "newcomers", "exits", "seen", "flight", "unmeasured")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """The processes of one rank: who counts now, who waits, and how those ended that have."""

    holder: RankInfo
    newcomer: RankInfo | None = None
    exits: tuple[RankExitRecord, ...] = ()


class _Part:
    """Some fields of a record, as a part of the document."""

    def __init__(self, owner: type, *names: str) -> None:
        hints = get_type_hints(owner)
        self._codecs: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(hints[name]) for name in names}

    def of(self, record: object) -> dict[str, Any]:
        """What the document says of them."""
        return {name: codec.dump_python(getattr(record, name), mode="json") for name, codec in self._codecs.items()}

    def fields(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The fields again."""
        return {name: codec.validate_python(document[name]) for name, codec in self._codecs.items()}


_JOB = _Part(Job, "must_recover", "seen_to_end", "advised")
_KNOWN = _Part(
    JobKnowledge, *(each.name for each in fields(JobKnowledge) if each.name not in (*_AS_REGISTERED, *_IN_OWN_ROWS))
)
_UNMEASURED = _Part(AppliedPlan, "first_iteration", "workload")
_FLIGHT = _Part(PlanInFlight, "participants")
_SEAT = TypeAdapter(_Seat)


def saved_state(job: Job, before: Job, version: int) -> WorkingStateRecord:
    """What is saved of a job.

    Args:
        job: The job.
        before: The same as it was saved last, or as it was registered.
        version: One more than that had.
    """
    known = job.known
    document: dict[str, Any] = {"job": _JOB.of(job), "known": _KNOWN.of(known)}
    if known.unmeasured is not None:
        document["unmeasured"] = {"plan_id": known.unmeasured.record.plan_id, **_UNMEASURED.of(known.unmeasured)}
    if known.flight is not None:
        document["flight"] = {"plan_id": known.flight.record.plan_id, **_FLIGHT.of(known.flight)}
    return WorkingStateRecord(
        job_id=known.job_id,
        version=version,
        save_id=uuid.uuid4().hex,
        document=document,
        plan_ids=tuple(document[part]["plan_id"] for part in ("unmeasured", "flight") if part in document),
        seats={rank: _SEAT.dump_python(seat, mode="json") for rank, seat in _new_seats(known, before.known)},
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
    kept = _KNOWN.fields(document["known"])
    known = replace(
        job.known,
        **kept,
        **_from_seats({rank: _SEAT.validate_python(seat) for rank, seat in stored.state.seats.items()}, job.known),
        layouts=layouts,
        seen=stored.seen,
    )
    if (applied := document.get("unmeasured")) is not None:
        record = stored.plans[applied["plan_id"]].plan
        known = replace(known, unmeasured=AppliedPlan(record=record, **_UNMEASURED.fields(applied)))
    if (flight := document.get("flight")) is not None:
        status = stored.plans[flight["plan_id"]]
        decision = None if status.decision is None else decision_from_document(status.decision, layouts)
        in_flight = PlanInFlight(record=status.plan, decision=decision, **_FLIGHT.fields(flight))
        known = replace(known, flight=in_flight)
    return replace(job, **_JOB.fields(document["job"]), known=known)


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
