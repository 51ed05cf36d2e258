"""The SQL blocks of docs/sql.md and their outputs. ``python -m tests.integration.history.sql_page URL`` rewrites the
outputs from the seeded database at URL; look at the difference before you commit it.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import psycopg

PAGE = Path(__file__).parents[3] / "docs" / "sql.md"
_BLOCK = re.compile(r"```sql\n(?P<query>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlBlock:
    """A query and the output that the page shows for it."""

    line: int
    query: str
    output: str


def sql_blocks(page: str) -> Iterator[SqlBlock]:
    for found in _BLOCK.finditer(page):
        line = page.count("\n", 0, found.start()) + 2
        yield SqlBlock(line=line, query=found["query"], output=found["output"] or "")


def run(connection: psycopg.Connection[tuple[object, ...]], query: str) -> str:
    """The query's output as a table of text."""
    cursor = connection.execute(query.encode())
    assert cursor.description is not None
    rows = [[column.name for column in cursor.description]]
    rows += [[_shown(value) for value in row] for row in cursor.fetchall()]
    return _table(rows)


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case datetime():
            moment = value.astimezone(UTC)
            return moment.strftime("%Y-%m-%d %H:%M:%S") + (
                f".{moment.microsecond // 1000:03}" * (moment.microsecond > 0)
            )
        case date():
            return value.isoformat()
        case float():
            return f"{value:.6g}"
        case list():
            return "{" + ", ".join(_shown(item) for item in value) + "}"
        case _:
            return str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]]) + "\n"


def rewrite(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:

        def shown(found: re.Match[str]) -> str:
            return f"```sql\n{found['query']}```\n\n```text\n{run(connection, found['query'])}```\n"

        PAGE.write_text(_BLOCK.sub(shown, PAGE.read_text()))


if __name__ == "__main__":
    rewrite(sys.argv[1])
