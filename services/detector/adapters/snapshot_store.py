"""Where snapshots of jobs are kept: in PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.contracts.topics import FRAMES
from evenkeel.history.stream_records import SnapshotRecord
from evenkeel.history.writes.snapshots import delete_snapshots, load_snapshots, save_snapshots
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.kafka import Partition
from evenkeel.services.common.postgres.database import DATABASE_AWAY
from evenkeel.services.detector.adapters.snapshot import FORMAT

# Saving holds the stream: a database that hangs must not hold verdicts up for longer than this.
_SAVE_TIMEOUT_SECONDS = 2.0


class AnotherInstanceAheadError(RuntimeError):
    """Somebody else has snapshots that cover more: this instance lost its partitions without noticing. It must end."""


class SnapshotStore:
    """Keeps the newest snapshot of every job, in the table ``detector_snapshots``.

    Args:
        engine: Where to.
        group: Consumer group whose state this is.
        reachability: Told whether the database answers.
    """

    def __init__(self, engine: AsyncEngine, *, group: str, reachability: Reachability) -> None:
        self._engine = engine
        self._group = group
        self._reachability = reachability

    async def load(self, partitions: Collection[Partition]) -> list[SnapshotRecord]:
        """The newest snapshots of all jobs in some partitions; waits for as long as the database is away."""
        numbers = sorted(partition.number for partition in partitions)

        async def load() -> list[SnapshotRecord]:
            async with self._engine.connect() as connection:
                return await load_snapshots(
                    connection, consumer_group=self._group, topic=FRAMES.name, partitions=numbers
                )

        return await persist(load, transient=DATABASE_AWAY, reachability=self._reachability)

    async def save(self, snapshots: Sequence[SnapshotRecord]) -> None:
        """Keeps all of them or none.

        Raises:
            AnotherInstanceAheadError: There is one that covers more already.
            OSError: The database is away; nothing was kept.
        """
        async with self._writing() as connection:
            behind = await save_snapshots(
                connection, snapshots, consumer_group=self._group, encoding=f"detector/{FORMAT}"
            )
            if behind:
                raise AnotherInstanceAheadError(
                    f"job {behind[0].job_id}: a snapshot beyond offset {behind[0].next_offset} of "
                    f"{behind[0].topic}/{behind[0].partition} is there already"
                )

    async def forget(self, job_ids: Collection[str]) -> None:
        """Drops the snapshots of jobs that are over.

        Raises:
            OSError: The database is away.
        """
        async with self._writing() as connection:
            await delete_snapshots(connection, consumer_group=self._group, topic=FRAMES.name, job_ids=list(job_ids))

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with asyncio.timeout(_SAVE_TIMEOUT_SECONDS), self._engine.begin() as connection:
                yield connection
        except DATABASE_AWAY as error:
            self._reachability.down(error)
            raise OSError(str(error)) from error
        self._reachability.up()
