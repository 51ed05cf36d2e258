"""State of stream consumers, with the offset it covers: replaced by each newer one."""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.stream_records import SnapshotRecord

_SAVE = text("""
INSERT INTO detector_snapshots AS known (consumer_group, format, topic, partition, job_id, next_offset, state)
SELECT CAST(:consumer_group AS text), CAST(:format AS text), one.* FROM unnest(
    CAST(:topic AS text[]), CAST(:partition AS integer[]), CAST(:job_id AS text[]),
    CAST(:next_offset AS bigint[]), CAST(:state AS bytea[])
) AS one
ON CONFLICT (consumer_group, topic, partition, job_id) DO UPDATE SET
    next_offset = excluded.next_offset, format = excluded.format, state = excluded.state, saved_at = clock_timestamp()
WHERE excluded.next_offset >= known.next_offset
RETURNING job_id
""")
_LOAD = text("""
SELECT topic, partition, job_id, next_offset, state FROM detector_snapshots
WHERE consumer_group = :consumer_group AND topic = :topic AND partition = ANY (CAST(:partitions AS integer[]))
ORDER BY partition, job_id
""")
_DELETE = text("""
DELETE FROM detector_snapshots
WHERE consumer_group = :consumer_group AND topic = :topic AND job_id = ANY (CAST(:job_ids AS text[]))
""")


async def save_snapshots(
    connection: AsyncConnection, snapshots: Sequence[SnapshotRecord], *, consumer_group: str, encoding: str
) -> list[SnapshotRecord]:
    """Keep snapshots of different jobs, each as the newest of its (group, topic, partition, job).

    Args:
        connection: In a transaction.
        snapshots: At least one.
        consumer_group: Who keeps them.
        encoding: Name and version of that of their states, for example ``detector/1``.

    Returns:
        Those in whose place one that covers more is there already: another instance is ahead, and this one should stop.
    """
    columns = dict(zip(SnapshotRecord._fields, map(list, zip(*snapshots, strict=True)), strict=True))
    kept = set(await connection.scalars(_SAVE, columns | {"consumer_group": consumer_group, "format": encoding}))
    return [each for each in snapshots if each.job_id not in kept]


async def load_snapshots(
    connection: AsyncConnection, *, consumer_group: str, topic: str, partitions: Sequence[int]
) -> list[SnapshotRecord]:
    """The newest snapshots of a group in some partitions of a topic, ordered by partition and job."""
    wanted = {"consumer_group": consumer_group, "topic": topic, "partitions": list(partitions)}
    return [SnapshotRecord(*row) for row in await connection.execute(_LOAD, wanted)]


async def delete_snapshots(
    connection: AsyncConnection, *, consumer_group: str, topic: str, job_ids: Sequence[str]
) -> int:
    """Forget jobs that are over.

    Returns:
        Number of snapshots deleted.
    """
    over = {"consumer_group": consumer_group, "topic": topic, "job_ids": list(job_ids)}
    return (await connection.execute(_DELETE, over)).rowcount
