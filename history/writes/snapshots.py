"""State of stream consumers, with the offset it covers: replaced by each newer one."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.stream_records import SnapshotRecord

_SAVE = text("""
INSERT INTO detector_snapshots AS known (consumer_group, topic, partition, job_id, next_offset, format, state)
VALUES (:consumer_group, :topic, :partition, :job_id, :next_offset, :format, :state)
ON CONFLICT (consumer_group, topic, partition, job_id) DO UPDATE SET
    next_offset = excluded.next_offset, format = excluded.format, state = excluded.state, saved_at = clock_timestamp()
WHERE excluded.next_offset >= known.next_offset
RETURNING 1
""")
_LOAD = text("""
SELECT consumer_group, topic, partition, job_id, next_offset, format, state FROM detector_snapshots
WHERE consumer_group = :consumer_group AND topic = :topic AND partition = ANY (CAST(:partitions AS integer[]))
ORDER BY partition, job_id
""")
_DELETE = text("""
DELETE FROM detector_snapshots
WHERE consumer_group = :consumer_group AND topic = :topic AND job_id = ANY (CAST(:job_ids AS text[]))
""")


async def save_snapshot(connection: AsyncConnection, snapshot: SnapshotRecord) -> bool:
    """Keep a snapshot as the newest of its (group, topic, partition, job).

    Returns:
        False when a snapshot that covers more is there already: another instance is ahead, and this one should stop.
    """
    return (await connection.execute(_SAVE, asdict(snapshot))).first() is not None


async def load_snapshots(
    connection: AsyncConnection, *, consumer_group: str, topic: str, partitions: Sequence[int]
) -> list[SnapshotRecord]:
    """The newest snapshots of a group in some partitions of a topic, ordered by partition and job."""
    wanted = {"consumer_group": consumer_group, "topic": topic, "partitions": list(partitions)}
    return [SnapshotRecord(**row._mapping) for row in await connection.execute(_LOAD, wanted)]


async def delete_snapshots(
    connection: AsyncConnection, *, consumer_group: str, topic: str, job_ids: Sequence[str]
) -> int:
    """Forget jobs that are over.

    Returns:
        Number of snapshots deleted.
    """
    over = {"consumer_group": consumer_group, "topic": topic, "job_ids": list(job_ids)}
    return (await connection.execute(_DELETE, over)).rowcount
