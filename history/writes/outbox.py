"""Kafka records that must go out exactly when their transaction commits.

Enqueue in the transaction that writes the rows. A publisher takes the oldest records in a transaction of its own, sends
them, and commits once Kafka has acknowledged: a crash in between sends them again, with the same event ids.
"""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.stream_records import OutboxRecord
from evenkeel.history.writes._rows import add_row, values_of

_TAKE = text("""
WITH taken AS (
    DELETE FROM outbox
    WHERE outbox_id = ANY (ARRAY(SELECT outbox_id FROM outbox ORDER BY outbox_id LIMIT :limit FOR UPDATE))
    RETURNING outbox_id, event_id, topic, key, value
)
SELECT event_id, topic, key, value FROM taken ORDER BY outbox_id
""")


async def enqueue_outbox(connection: AsyncConnection, record: OutboxRecord) -> bool:
    """Add a record to be sent.

    Returns:
        False when its event id waits already.
    """
    return await add_row(connection, "outbox", values_of(record, headers={}))


async def take_outbox(connection: AsyncConnection, *, limit: int = 100) -> list[OutboxRecord]:
    """Take the oldest records out, in order. Send them, then commit; roll back when sending failed.

    A second publisher waits here until the first one's transaction ends, so that order holds.
    """
    rows = await connection.execute(_TAKE, {"limit": limit})
    return [OutboxRecord(**row._mapping) for row in rows]
