"""Who is believed, by what the history knows: jobs by their keys, and ends of processes that have registered.

What is known of a job stays in memory: while the database is away batches of the jobs that are known go on.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.contracts.mac import JobKey, SignatureError, job_key, verified, without_signature
from evenkeel.history.reads import job_tokens, registered_processes
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.kafka import Rejection
from evenkeel.services.common.postgres.database import DATABASE_AWAY
from evenkeel.services.telemetry.adapters.batch_reader import ArrivedJob
from evenkeel.services.telemetry.domain.observed import ENDS
from evenkeel.services.telemetry.domain.validate import MAX_JOB_ID_CHARACTERS

T = TypeVar("T")
Process = tuple[str, int, int]
"""Job, rank and incarnation."""
ReadTokens = Callable[[Sequence[str] | None], Awaitable[Mapping[str, str]]]
"""Tokens of those of some jobs that are registered; with None of all jobs that have not finished."""
ReadProcesses = Callable[[Sequence[Process]], Awaitable[Collection[Process]]]
"""Those of some processes that are registered."""

UNREADABLE: tuple[type[BaseException], ...] = (*DATABASE_AWAY, DBAPIError)
"""The history cannot be read: tables that are not there yet are no other matter."""
_MOST_JOBS = 100_000
_LONGEST_WAIT_SECONDS = 2.0
# A job may be registered after it was heard first; so long it may go on as one that is not.
_RECHECK_SECONDS = 1.0


def tokens_in(engine: AsyncEngine) -> ReadTokens:
    """Reads from a database."""

    async def read(job_ids: Sequence[str] | None) -> Mapping[str, str]:
        async with engine.connect() as connection:
            return await job_tokens(connection, job_ids)

    return read


def processes_in(engine: AsyncEngine) -> ReadProcesses:
    """Reads from a database."""

    async def read(asked: Sequence[Process]) -> Collection[Process]:
        async with engine.connect() as connection:
            return await registered_processes(connection, asked)

    return read


class JobKeys:
    """Keys of jobs, and their processes. Asks on the event loop's thread; :meth:`believed` may be called on another."""

    def __init__(
        self,
        read_tokens: ReadTokens,
        read_processes: ReadProcesses,
        *,
        allow_unsigned: bool,
        on_change: Callable[[bool, str], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            read_tokens: Where tokens come from.
            read_processes: Where it is known who has registered.
            allow_unsigned: Whether jobs are believed that are not registered, and so have no key.
            on_change: Told (reachable, problem) when the database goes away or comes back.
            monotonic: Seconds.
        """
        self._read_tokens, self._read_processes = read_tokens, read_processes
        self._allow_unsigned = allow_unsigned
        self._reachability = Reachability("postgres", on_change)
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        # The one heard last is at the end. Of jobs that are not registered: None, and when that was so.
        self._known: OrderedDict[str, tuple[JobKey | None, float]] = OrderedDict()

    async def load(self) -> None:
        """Asks for the keys of all jobs that run, until the database answers; before the first batch."""
        tokens = await persist(lambda: self._read_tokens(None), transient=UNREADABLE, reachability=self._reachability)
        self._note(tokens, tokens)

    async def learn(self, record_keys: Iterable[bytes]) -> None:
        """Asks for those that are needed to believe records, if the database is there; waits 2 s at most.

        Args:
            record_keys: Of the records; each is the job's id.
        """
        job_ids = {_job_id(key) for key in record_keys} - {""}
        due = []
        for job_id in job_ids:
            known = self._known.get(job_id)
            if known is not None:
                self._known.move_to_end(job_id)
            if known is None or (known[0] is None and self._monotonic() - known[1] > _RECHECK_SECONDS):
                due.append(job_id)
        if due and self._reachability.reachable:
            tokens = await self._asked(self._read_tokens(due))
            if tokens is not None:
                self._note(due, tokens)

    async def run(self) -> None:
        """Notices, until cancelled, that the database is back."""
        while True:
            await asyncio.sleep(_RECHECK_SECONDS)
            if not self._reachability.reachable:
                await self._asked(self._read_tokens([]))

    def believed(self, record_key: bytes, value: bytes) -> bytes:
        """The bytes of a batch without its signature, if its job has signed it, or has no key and is believed so.

        Raises:
            SignatureError: Otherwise.
        """
        job_id = _job_id(record_key)
        key: JobKey | None = None
        if job_id:
            known = self._known.get(job_id)
            if known is None:
                raise SignatureError("key_unread", "the database is away that knows whether its job has a key")
            key = known[0]
        if key is not None:
            secret = key.secret
            return verified(value, lambda number: secret if number == key.number else None)
        if not self._allow_unsigned:
            raise SignatureError("unregistered", "its job is not registered, and EVENKEEL_ALLOW_UNSIGNED is off")
        return without_signature(value)

    async def strangers(self, jobs: Sequence[ArrivedJob]) -> list[Rejection]:
        """Records of registered jobs that tell of the end of a process that never registered.

        None while the database is away: an end that its launcher has signed must not wait for it.
        """
        told = [
            ((job.job_id, event.rank, event.incarnation), job.records[teller])
            for job in jobs
            if self._known.get(job.job_id, (None, 0.0))[0] is not None
            for event, teller in zip(job.arrived.events, job.tellers, strict=True)
            if event.kind in ENDS
        ]
        if not told or not self._reachability.reachable:
            return []
        known = await self._asked(self._read_processes([process for process, _ in told]))
        unknown = {
            record.offset: (record, process) for process, record in told if known is not None and process not in known
        }
        return [
            Rejection(
                record=record,
                error="unregistered_process",
                reason=f"the end of rank {rank}, incarnation {incarnation}, which never registered",
            )
            for record, (_, rank, incarnation) in unknown.values()
        ]

    async def _asked(self, asking: Awaitable[T]) -> T | None:
        """The database's answer; None if it is away, or has none in time. Connections are few: one asks at a time."""
        try:
            async with self._lock, asyncio.timeout(_LONGEST_WAIT_SECONDS):
                answer = await asking
        except UNREADABLE as error:
            self._reachability.down(error)
            return None
        self._reachability.up()
        return answer

    def _note(self, job_ids: Iterable[str], tokens: Mapping[str, str]) -> None:
        now_seconds = self._monotonic()
        for job_id in job_ids:
            self._known[job_id] = (job_key(job_id, tokens.get(job_id, "")), now_seconds)
            self._known.move_to_end(job_id)
        while len(self._known) > _MOST_JOBS:
            self._known.popitem(last=False)


def _job_id(record_key: bytes) -> str:
    """The job whose id a record's key is; empty for a key that no job can have, which is refused later."""
    try:
        job_id = record_key.decode()
    except UnicodeDecodeError:
        return ""
    return "" if "\0" in job_id or len(job_id) > MAX_JOB_ID_CHARACTERS else job_id
