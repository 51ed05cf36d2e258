"""Who is believed, by what the history knows: jobs by their keys, and ends of processes that have registered.

What is known of a job stays in memory: while the database is away batches of the jobs that are known go on.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.contracts.mac import JobKey, UnbelievedError, job_key, verified, without_signature
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.kafka import Rejection
from evenkeel.services.common.postgres.database import UNREADABLE
from evenkeel.services.telemetry.adapters.batch_reader import ArrivedJob
from evenkeel.services.telemetry.domain.observed import ENDS
from evenkeel.services.telemetry.domain.validate import MAX_JOB_ID_CHARACTERS

A = TypeVar("A")
T = TypeVar("T")
Process = tuple[str, int, int]
"""Job, rank and incarnation."""
ReadTokens = Callable[[Sequence[str] | None], Awaitable[Mapping[str, str]]]
"""Tokens of those of some jobs that are registered; with None of all jobs that have not finished."""
ReadProcesses = Callable[[Sequence[Process]], Awaitable[Collection[Process]]]
"""Those of some processes that are registered."""

_MOST_JOBS = 100_000
_LONGEST_WAIT_SECONDS = 2.0
# A job may be registered after it was heard first; so long it may go on as one that is not.
_RECHECK_SECONDS = 1.0


def asking(engine: AsyncEngine, read: Callable[[AsyncConnection, A], Awaitable[T]]) -> Callable[[A], Awaitable[T]]:
    """Reads from a database, with a connection of its own each time."""

    async def ask(asked: A) -> T:
        async with engine.connect() as connection:
            return await read(connection, asked)

    return ask


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
        """Notices, until cancelled, that the database is away or back, also while nobody has a question for it."""
        while True:
            await asyncio.sleep(_RECHECK_SECONDS)
            await self._asked(self._read_tokens([]))

    def believed(self, record_key: bytes, value: bytes) -> bytes:
        """The bytes of a batch without its signature, if its job has signed it, or has no key and is believed so.

        Raises:
            UnbelievedError: Otherwise.
        """
        key, job_id = None, _job_id(record_key)
        if job_id:
            if job_id not in self._known:
                raise UnbelievedError("key_unread", "the database is away that knows whether its job has a key")
            key, _ = self._known[job_id]
        if key is not None:
            return verified(value, key)
        if not self._allow_unsigned:
            raise UnbelievedError("unregistered", "its job is not registered, and EVENKEEL_ALLOW_UNSIGNED is off")
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
        if known is None:
            return []
        unknown = {record.offset: (record, process) for process, record in told if process not in known}
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
