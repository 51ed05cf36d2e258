"""State of stream consumers, with the offset it covers: replaced by each newer one."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.stream_records import SnapshotRecord
from evenkeel.history.tables.streams import DetectorSnapshotRow as Row


async def save_snapshot(connection: AsyncConnection, snapshot: SnapshotRecord) -> bool:
    """Keep a snapshot as the newest of its (group, topic, partition, job).

    Returns:
        False when a snapshot that covers more is there already: another instance is ahead, and this one should stop.
    """
    statement = insert(Row).values(**asdict(snapshot))
    new = statement.excluded
    upsert = statement.on_conflict_do_update(
        index_elements=[Row.consumer_group, Row.topic, Row.partition, Row.job_id],
        set_={
            "next_offset": new.next_offset,
            "format": new.format,
            "state": new.state,
            "saved_at": func.clock_timestamp(),
        },
        where=new.next_offset >= Row.next_offset,
    ).returning(Row.next_offset)
    return (await connection.execute(upsert)).first() is not None


async def load_snapshots(
    connection: AsyncConnection, *, consumer_group: str, topic: str, partitions: Sequence[int] | None = None
) -> list[SnapshotRecord]:
    """The newest snapshots of a group, ordered by partition and job.

    Args:
        connection: Open connection.
        consumer_group: Whose.
        topic: Of which topic.
        partitions: Only of these; None = of all.
    """
    statement = (
        select(Row.partition, Row.job_id, Row.next_offset, Row.format, Row.state)
        .where(Row.consumer_group == consumer_group, Row.topic == topic)
        .order_by(Row.partition, Row.job_id)
    )
    if partitions is not None:
        statement = statement.where(Row.partition.in_(partitions))
    rows = await connection.execute(statement)
    return [SnapshotRecord(consumer_group=consumer_group, topic=topic, **row._mapping) for row in rows]


async def delete_snapshots(
    connection: AsyncConnection, *, consumer_group: str, topic: str, job_ids: Sequence[str]
) -> int:
    """Forget jobs that are over.

    Returns:
        Number of snapshots deleted.
    """
    statement = delete(Row).where(Row.consumer_group == consumer_group, Row.topic == topic, Row.job_id.in_(job_ids))
    return len((await connection.execute(statement.returning(Row.job_id))).all())
