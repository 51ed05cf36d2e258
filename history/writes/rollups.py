"""Windows of iterations per rank, in batches.

A batch travels as one JSON document: binding the values of thousands of rows one by one holds up the event loop for
seconds.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from history.records import RollupRecord

_COLUMNS = tuple(field.name for field in dataclasses.fields(RollupRecord))
_values_of = attrgetter(*_COLUMNS)
_NAMES = ", ".join(_COLUMNS)
_INSERT = text(
    f"""
    WITH new AS (
        INSERT INTO rank_rollups ({_NAMES})
        SELECT {_NAMES} FROM jsonb_populate_recordset(CAST(NULL AS rank_rollups), CAST(:rows AS jsonb))
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
    return int(await connection.scalar(_INSERT, {"rows": _as_json(rollups)}) or 0)


def _as_json(rollups: Sequence[RollupRecord]) -> str:
    rows = [dict(zip(_COLUMNS, _values_of(rollup), strict=True)) for rollup in rollups]
    try:
        return json.dumps(rows, allow_nan=False, default=datetime.isoformat)
    except ValueError:  # PostgreSQL reads the words for numbers that JSON has not
        for row in rows:
            row.update({name: str(value) for name, value in row.items() if _is_no_number(value)})
        return json.dumps(rows, allow_nan=False, default=datetime.isoformat)


def _is_no_number(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
