"""Windows of iterations per rank, in batches.

A batch travels as one array a column, written as text: binding the values of thousands of rows one by one holds up the
event loop for seconds, and a document of rows repeats the columns' names in each.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.stream_records import RollupRecord


def _plain(value: object) -> str:
    return "NULL" if value is None else repr(value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# By type of a column: what its values are to PostgreSQL, and how one is written in an array.
_TYPES: dict[object, tuple[str, Callable[..., str]]] = {
    str: ("text", _quoted),
    int: ("bigint", repr),
    float: ("double precision", repr),
    float | None: ("double precision", _plain),
    datetime: ("timestamptz", datetime.isoformat),
}
_COLUMNS = {name: _TYPES[kind] for name, kind in RollupRecord.__annotations__.items()}
_NAMES = ", ".join(_COLUMNS)
_ARRAYS = ", ".join(f"CAST(:{name} AS {kind}[])" for name, (kind, _) in _COLUMNS.items())
_INSERT = text(
    f"""
    WITH new AS (
        INSERT INTO rank_rollups ({_NAMES})
        SELECT {_NAMES} FROM unnest({_ARRAYS}) AS given ({_NAMES})
        ON CONFLICT DO NOTHING RETURNING 1
    )
    SELECT count(*) FROM new
    """  # noqa: S608 - names of our own columns
)


async def insert_rollups(connection: AsyncConnection, rollups: Sequence[RollupRecord]) -> int:
    """Add rollups; those whose (job, rank, incarnation, epoch, first iteration) are known already are left alone.

    Give every replay the same window borders (for example multiples of the window length), or a window is counted
    twice.

    Returns:
        Number of rows that were new.
    """
    if not rollups:
        return 0
    columns = zip(_COLUMNS.items(), zip(*rollups, strict=True), strict=True)
    arrays = {name: _array(map(write, values)) for (name, (_, write)), values in columns}
    return int(await connection.scalar(_INSERT, arrays) or 0)


def _array(values: Iterable[str]) -> str:
    return "{" + ",".join(values) + "}"
