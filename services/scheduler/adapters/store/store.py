"""The scheduler's way to the history: records in, one transaction, all or nothing.

A change of a plan's state takes the plan's message for Kafka along in the same transaction (``outbox``), so that the
topic of plans and the table never disagree; :mod:`evenkeel.services.scheduler.adapters.store.outbox` sends it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.contracts.topics import PLANS
from evenkeel.history import reads, writes
from evenkeel.history.records import (
    IncidentEventRecord,
    IncidentRecord,
    JobRecord,
    JobStateRecord,
    PlanEventRecord,
    PlanRecord,
    PlanStatus,
    RankExitRecord,
    RankRecord,
    StoredJob,
    VerdictRecord,
)
from evenkeel.history.stream_records import OutboxRecord, WorkingStateRecord
from evenkeel.history.vocabulary import PlanState
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.kafka.records import Partition
from evenkeel.services.common.postgres.database import DATABASE_AWAY, DatabaseAwayError
from evenkeel.services.scheduler.adapters.api.codec import plan_to_proto
from evenkeel.services.scheduler.adapters.store.group_commit import GroupCommit
from evenkeel.services.scheduler.jobs.steps import JobChange

Fence = Callable[[AsyncConnection], Awaitable[None]]
"""Makes a transaction commit only if this process is still in charge; raises DeposedError where it is not."""

_READER = "scheduler"

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


class Store:
    """History of the scheduler on one engine. Safe for many tasks: each read is a transaction of its own."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        timeout_seconds: float = 5.0,
        reachability: Reachability | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            engine: From :func:`evenkeel.services.common.postgres.database.create_engine`; the caller disposes of it.
            timeout_seconds: Longest wait for one call; after it the database counts as away.
            reachability: Told whether the database answers; None = only the log is.
            fence: Of every transaction that writes; None = nobody else ever writes.
        """
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._reachability = reachability or Reachability("postgres")
        self._fence = fence
        self._group = GroupCommit(self._write)
        self.outbox_filled = asyncio.Event()
        """Set whenever records for Kafka have been committed."""

    async def save(self, changes: Sequence[JobChange]) -> None:
        """Add records in the order given, all or none; durable on return. The same call twice adds nothing.

        Raises:
            history.errors.HistoryError: A change contradicts the history, or what it refers to is missing; or this
                process is not in charge any more.
            OperationalError, InterfaceError, DatabaseAwayError: The database is away: nothing or everything
                was saved; try again.
        """
        await self._group.save(changes)
        if any(isinstance(change, PlanRecord | PlanEventRecord) for change in changes):
            self.outbox_filled.set()

    async def save_patiently(self, changes: Sequence[JobChange]) -> None:
        """As :meth:`save`, but waits for as long as the database is away.

        Raises:
            history.errors.HistoryError: As for :meth:`save`.
        """
        await self.patiently(lambda: self.save(changes))

    async def patiently(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """What some work answers that asks the database; begun anew for as long as that is away."""
        return await persist(work, transient=DATABASE_AWAY, reachability=self._reachability)

    async def load_offsets(self) -> Mapping[Partition, int]:
        """See :class:`evenkeel.services.common.kafka.assigned_consumer.OffsetStore`."""
        found = await self.patiently(lambda: self.read(writes.load_offsets, _READER))
        return {Partition(*each): offset for each, offset in found.items()}

    async def save_offsets(self, offsets: Mapping[Partition, int]) -> bool:
        """See :class:`evenkeel.services.common.kafka.assigned_consumer.OffsetStore`."""
        try:
            async with self.begin() as connection:
                named = {(topic, number): offset for (topic, number), offset in offsets.items()}
                await writes.save_offsets(connection, _READER, named)
        except DATABASE_AWAY:
            return False
        return True

    async def load_job(self, job_id: str) -> StoredJob | None:
        """An unfinished job with all that is needed to go on with it, or None; see :meth:`load_jobs`."""
        return (await self.load_jobs([job_id])).get(job_id)

    async def load_jobs(self, job_ids: Sequence[str]) -> Mapping[str, StoredJob]:
        """Those of the jobs that are not finished, with all that is needed to go on with them; one consistent picture.

        Waits for as long as the database is away.
        """

        async def load() -> Mapping[str, StoredJob]:
            timeout_seconds = self._timeout_seconds * max(1, len(job_ids))
            async with asyncio.timeout(timeout_seconds), self._engine.connect() as connection:
                snapshot = await connection.execution_options(isolation_level="REPEATABLE READ")
                return await reads.load_jobs(snapshot, job_ids)

        return await self.patiently(load)

    async def read(
        self,
        query: Callable[Concatenate[AsyncConnection, Asked], Awaitable[Answer]],
        *args: Asked.args,
        **kwargs: Asked.kwargs,
    ) -> Answer:
        """What one of :mod:`evenkeel.history.reads` finds.

        Raises:
            OperationalError, InterfaceError, DatabaseAwayError: The database is away.
            PageError: What is asked for is a page that cannot be.
        """
        async with self._begin(self._timeout_seconds) as connection:
            return await query(connection, *args, **kwargs)

    async def _write(self, changes: Sequence[JobChange]) -> None:
        """Those of any jobs, in the order given; but ranks come together after jobs, and how jobs stand at the end."""
        ranks = [change for change in changes if isinstance(change, RankRecord)]
        states = [change for change in changes if isinstance(change, WorkingStateRecord)]
        async with self.begin() as connection:
            for change in changes:
                if isinstance(change, JobRecord):
                    await writes.register_job(connection, change)
            if ranks:
                await writes.register_ranks(connection, ranks)
            for change in changes:
                if not isinstance(change, JobRecord | RankRecord | WorkingStateRecord):
                    await _add(connection, change)
            if states:
                await writes.save_working_states(connection, states)

    @asynccontextmanager
    async def begin(self, *, idle_seconds: float = 0.0) -> AsyncIterator[AsyncConnection]:
        """A transaction that writes: it commits only if this process is still in charge.

        Args:
            idle_seconds: How long something else than the database may be waited for in it.

        Raises:
            DeposedError: It is not.
            OperationalError, InterfaceError, DatabaseAwayError: The database is away.
        """
        async with self._begin(self._timeout_seconds + idle_seconds) as connection:
            if self._fence is not None:
                await self._fence(connection)
            yield connection

    @asynccontextmanager
    async def _begin(self, timeout_seconds: float) -> AsyncIterator[AsyncConnection]:
        try:
            async with asyncio.timeout(timeout_seconds), self._engine.begin() as connection:
                yield connection
        except DATABASE_AWAY as error:
            self._reachability.down(error)
            if isinstance(error, OSError | TimeoutError):
                raise DatabaseAwayError(f"the history did not answer: {error!r}") from error
            raise
        self._reachability.up()


async def _add(connection: AsyncConnection, change: JobChange) -> None:
    match change:
        case JobStateRecord():
            await writes.set_job_state(connection, change.job_id, change.state, change.at, change.detail)
        case PlanRecord():
            if await writes.record_plan(connection, change):
                await _announce(connection, PlanStatus(plan=change, state=PlanState.PROPOSED, at=change.proposed_at))
        case PlanEventRecord():
            if await writes.append_plan_event(connection, change):
                status = await reads.get_plan(connection, change.plan_id)
                assert status is not None, f"plan {change.plan_id} was written in this transaction"
                await _announce(connection, status)
        case _:
            await _ADD[type(change)](connection, change)


_ADD: Mapping[type, Callable[[AsyncConnection, Any], Awaitable[object]]] = {
    RankExitRecord: writes.record_exit,
    VerdictRecord: writes.record_verdict,
    IncidentRecord: writes.open_incident,
    IncidentEventRecord: writes.append_incident_event,
}


async def _announce(connection: AsyncConnection, status: PlanStatus) -> None:
    record = OutboxRecord(
        event_id=f"{status.plan.plan_id}:{status.state}",
        topic=PLANS.name,
        key=status.plan.job_id,
        value=plan_to_proto(status).SerializeToString(),
    )
    await writes.enqueue_outbox(connection, record)
