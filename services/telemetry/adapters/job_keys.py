"""The keys by which jobs sign their batches, from the history; what no key can vouch for is not believed.

What is known of a job stays in memory: while the database is away batches of the jobs that are known go on.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.contracts.mac import JobKey, SignatureError, job_key, verified, without_signature
from evenkeel.history.reads import job_tokens
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.database import DATABASE_AWAY
from evenkeel.services.telemetry.domain.validate import MAX_JOB_ID_CHARACTERS

ReadTokens = Callable[[Sequence[str] | None], Awaitable[Mapping[str, str]]]
"""Tokens of those of some jobs that are registered; with None of all jobs that have not finished."""

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


class JobKeys:
    """Keys of jobs. Asks on the event loop's thread; :meth:`believed` may be called on another."""

    def __init__(
        self,
        read_tokens: ReadTokens,
        *,
        allow_unsigned: bool,
        on_change: Callable[[bool, str], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            read_tokens: Where tokens come from.
            allow_unsigned: Whether jobs are believed that are not registered, and so have no key.
            on_change: Told (reachable, problem) when the database goes away or comes back.
            monotonic: Seconds.
        """
        self._read_tokens = read_tokens
        self._allow_unsigned = allow_unsigned
        self._reachability = Reachability("postgres", on_change)
        self._monotonic = monotonic
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
            await self._ask(due)

    async def run(self) -> None:
        """Notices, until cancelled, that the database is back."""
        while True:
            await asyncio.sleep(_RECHECK_SECONDS)
            if not self._reachability.reachable:
                await self._ask([])

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

    def has_key(self, job_id: str) -> bool:
        """Whether a job is known to be registered."""
        known = self._known.get(job_id)
        return known is not None and known[0] is not None

    async def _ask(self, job_ids: Sequence[str]) -> None:
        try:
            async with asyncio.timeout(_LONGEST_WAIT_SECONDS):
                tokens = await self._read_tokens(job_ids)
        except UNREADABLE as error:
            self._reachability.down(error)
            return
        self._reachability.up()
        self._note(job_ids, tokens)

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
