"""Where snapshots of jobs are kept: in PostgreSQL."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.history.stream_records import SnapshotRecord
from evenkeel.history.writes.snapshots import delete_snapshots, load_snapshots, save_snapshot
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.kafka import Partition
from evenkeel.services.common.postgres.database import DATABASE_AWAY

FORMAT = "detector/3"
# Saving holds the stream: a database that hangs must not hold verdicts up for longer than this.
_SAVE_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """State of one job and the first offset of its partition that the state does not cover."""

    partition: Partition
    job_id: str
    next_offset: int
    state: bytes


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

    async def load(self, partitions: Collection[Partition]) -> list[JobSnapshot]:
        """The newest snapshots of all jobs in some partitions; waits for as long as the database is away."""
        records = await persist(
            lambda: self._load(partitions), transient=DATABASE_AWAY, reachability=self._reachability
        )
        return [
            JobSnapshot(
                partition=Partition(record.topic, record.partition),
                job_id=record.job_id,
                next_offset=record.next_offset,
                state=record.state,
            )
            for record in records
        ]

    async def _load(self, partitions: Collection[Partition]) -> list[SnapshotRecord]:
        found: list[SnapshotRecord] = []
        async with self._engine.connect() as connection:
            for topic in sorted({partition.topic for partition in partitions}):
                numbers = sorted(partition.number for partition in partitions if partition.topic == topic)
                found += await load_snapshots(connection, consumer_group=self._group, topic=topic, partitions=numbers)
        return found

    async def save(self, snapshots: Sequence[JobSnapshot]) -> None:
        """Keeps all of them or none.

        Raises:
            AnotherInstanceAheadError: There is one that covers more already.
            OSError: The database is away; nothing was kept.
        """
        try:
            async with asyncio.timeout(_SAVE_TIMEOUT_SECONDS), self._engine.begin() as connection:
                for snapshot in snapshots:
                    await self._save(connection, snapshot)
        except DATABASE_AWAY as error:
            self._reachability.down(error)
            raise OSError(str(error)) from error
        self._reachability.up()

    async def _save(self, connection: AsyncConnection, snapshot: JobSnapshot) -> None:
        record = SnapshotRecord(
            consumer_group=self._group,
            topic=snapshot.partition.topic,
            partition=snapshot.partition.number,
            job_id=snapshot.job_id,
            next_offset=snapshot.next_offset,
            format=FORMAT,
            state=snapshot.state,
        )
        if not await save_snapshot(connection, record):
            raise AnotherInstanceAheadError(
                f"job {snapshot.job_id}: a snapshot beyond offset {snapshot.next_offset} of "
                f"{snapshot.partition.topic}/{snapshot.partition.number} is there already"
            )

    async def forget(self, topic: str, job_ids: Collection[str]) -> None:
        """Drops the snapshots of jobs that are over.

        Raises:
            OSError: The database is away.
        """
        try:
            async with asyncio.timeout(_SAVE_TIMEOUT_SECONDS), self._engine.begin() as connection:
                await delete_snapshots(connection, consumer_group=self._group, topic=topic, job_ids=list(job_ids))
        except DATABASE_AWAY as error:
            self._reachability.down(error)
            raise OSError(str(error)) from error
