"""Windows of iterations per rank, in batches."""

import dataclasses
from collections.abc import Sequence

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from history.records import RollupRecord
from history.tables import RankRollupRow


async def insert_rollups(connection: AsyncConnection, rollups: Sequence[RollupRecord]) -> int:
    """Add rollups; those whose (job, rank, incarnation, epoch, first iteration) are known already are left alone.

    Give every replay the same window borders (for example multiples of the window length), or a window is counted
    twice.

    Returns:
        Number of rows that were new.
    """
    if not rollups:
        return 0
    statement = insert(RankRollupRow).on_conflict_do_nothing().returning(RankRollupRow.rank)
    result = await connection.execute(statement, [dataclasses.asdict(rollup) for rollup in rollups])
    return len(result.all())
