"""Leases: one holder at a time is in charge, and whoever was cannot write any more. And how far readers have got.

The database's clock alone decides when a lease is over. Source of the scheme: leases with fencing tokens (Gray and
Cheriton, 1989); the token is the term.
"""

from collections.abc import Mapping
from dataclasses import asdict

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.errors import DeposedError
from evenkeel.history.stream_records import LeaseRecord

_EXPIRES_AT = "clock_timestamp() + make_interval(secs => :seconds)"
_BEGIN = text(f"""
INSERT INTO leases (name, term, holder, address, expires_at)
VALUES (:name, 1, :holder, :address, {_EXPIRES_AT}) ON CONFLICT DO NOTHING RETURNING term
""")  # noqa: S608 - constant words only
_CUT_OFF = text("""
SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity AS a JOIN leases AS l ON l.name = :name
WHERE l.expires_at < clock_timestamp() AND a.application_name LIKE '%/' || l.holder AND a.pid <> pg_backend_pid()
""")
"""A holder that is frozen in the middle of a transaction would keep everybody waiting."""
_TAKE_OVER = text(f"""
UPDATE leases SET term = term + 1, holder = :holder, address = :address, expires_at = {_EXPIRES_AT}
WHERE name = :name AND expires_at < clock_timestamp() RETURNING term
""")  # noqa: S608 - constant words only
_RENEW = text(f"""
UPDATE leases SET address = :address, expires_at = {_EXPIRES_AT}
WHERE name = :name AND term = :term AND holder = :holder RETURNING term
""")  # noqa: S608 - constant words only
_GIVE_UP = text("UPDATE leases SET expires_at = '-infinity' WHERE name = :name AND term = :term AND holder = :holder")
_HOLD = text("SELECT 1 FROM leases WHERE name = :name AND term = :term FOR KEY SHARE")
_GET = text("SELECT name, term, holder, address FROM leases WHERE name = :name")
_SAVE_OFFSET = text("""
INSERT INTO intake_offsets (reader, topic, partition, next_offset) VALUES (:reader, :topic, :partition, :next_offset)
ON CONFLICT (reader, topic, partition) DO UPDATE SET next_offset = excluded.next_offset
""")
_LOAD_OFFSETS = text("SELECT topic, partition, next_offset FROM intake_offsets WHERE reader = :reader")


async def take_lease(
    connection: AsyncConnection, name: str, *, holder: str, address: str, seconds: float
) -> int | None:
    """Be in charge, if nobody is; sessions of a holder whose time is over are ended.

    Args:
        connection: In a transaction.
        name: Of what.
        holder: Who; the names of its sessions end with it.
        address: Where it is found.
        seconds: For so long, unless it is renewed.

    Returns:
        The term; None while somebody else is in charge.
    """
    wanted = {"name": name, "holder": holder, "address": address, "seconds": seconds}
    await connection.execute(_CUT_OFF, {"name": name})
    term: int | None = await connection.scalar(_TAKE_OVER, wanted) or await connection.scalar(_BEGIN, wanted)
    return term


async def renew_lease(connection: AsyncConnection, lease: LeaseRecord, *, seconds: float) -> None:
    """Be in charge for longer; waits for nobody who writes under the lease.

    Raises:
        DeposedError: Somebody else is in charge.
    """
    if await connection.scalar(_RENEW, {**asdict(lease), "seconds": seconds}) is None:
        raise DeposedError(lease.name, lease.term)


async def give_up_lease(connection: AsyncConnection, lease: LeaseRecord) -> None:
    """Be in charge no more: the next one need not wait."""
    await connection.execute(_GIVE_UP, {"name": lease.name, "term": lease.term, "holder": lease.holder})


async def hold_lease(connection: AsyncConnection, name: str, term: int) -> None:
    """Until the transaction ends nobody takes the lease over.

    Raises:
        DeposedError: Somebody has.
    """
    if await connection.scalar(_HOLD, {"name": name, "term": term}) is None:
        raise DeposedError(name, term)


async def get_lease(connection: AsyncConnection, name: str) -> LeaseRecord | None:
    """Who is or was last in charge; None before the first."""
    row = (await connection.execute(_GET, {"name": name})).first()
    return None if row is None else LeaseRecord(**row._mapping)


async def save_offsets(connection: AsyncConnection, reader: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """How far a reader has got.

    Args:
        connection: In the transaction of what came of the records, or a later one.
        reader: Who.
        offsets: The first offset not dealt with, by topic and partition; at least one.
    """
    rows = [
        {"reader": reader, "topic": topic, "partition": partition, "next_offset": offset}
        for (topic, partition), offset in offsets.items()
    ]
    await connection.execute(_SAVE_OFFSET, rows)


async def load_offsets(connection: AsyncConnection, reader: str) -> dict[tuple[str, int], int]:
    """How far a reader has got, by topic and partition."""
    rows = await connection.execute(_LOAD_OFFSETS, {"reader": reader})
    return {(each.topic, each.partition): each.next_offset for each in rows}
