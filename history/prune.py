"""Deletes rollups that nobody will ask for any more: the one table that grows with time alone. Blocking."""

from collections.abc import Iterator
from datetime import datetime

import psycopg

_CONNECT_TIMEOUT_SECONDS = 10
# A batch takes well under a second, so that writers of rollups wait for nothing.
_BATCH_ROWS = 20_000
_DELETE = """
DELETE FROM rank_rollups WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM rank_rollups WHERE started_at < %s ORDER BY started_at LIMIT %s))
"""


def prune_rollups(database_url: str, before: datetime, *, batch_rows: int = _BATCH_ROWS) -> Iterator[int]:
    """Delete the rollups of windows that began before a moment, oldest first, each batch a transaction of its own.

    Args:
        database_url: Of the history.
        before: With a zone.
        batch_rows: At most so many at once.

    Yields:
        Number of rows deleted, after each batch.

    Raises:
        psycopg.Error: The database is away, or does not allow it.
    """
    with psycopg.connect(database_url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_SECONDS) as connection:
        while deleted := connection.execute(_DELETE, (before, batch_rows)).rowcount:
            yield deleted
