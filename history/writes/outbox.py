"""Kafka records that must go out exactly when their transaction commits.

Enqueue in the transaction that writes the rows. A publisher takes the oldest records in a transaction of its own, sends
them, and commits once Kafka has acknowledged: a crash in between sends them again, with the same event ids.
"""

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.stream_records import OutboxRecord
from evenkeel.history.tables.streams import OutboxRow as Row
from evenkeel.history.writes._rows import add_row


async def enqueue_outbox(connection: AsyncConnection, record: OutboxRecord) -> bool:
    """Add a record to be sent.

    Returns:
        False when its event id waits already.
    """
    return await add_row(connection, Row, record)


async def take_outbox(connection: AsyncConnection, *, limit: int = 100) -> list[OutboxRecord]:
    """Take the oldest records out, in order. Send them, then commit; roll back when sending failed.

    A second publisher waits here until the first one's transaction ends, so that order holds.
    """
    rows = (await connection.execute(select(Row).order_by(Row.outbox_id).limit(limit).with_for_update())).all()
    if rows:
        await connection.execute(delete(Row).where(Row.outbox_id.in_([row.outbox_id for row in rows])))
    return [
        OutboxRecord(event_id=row.event_id, topic=row.topic, key=row.key, value=row.value, headers=row.headers)
        for row in rows
    ]
