"""Shows rows: a table on a terminal, JSON for programs. NO_COLOR is heeded."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

# Wide enough that nothing is cut where there is no terminal to say how wide it is.
PIPE_WIDTH = 240


class OutputFormat(StrEnum):
    """How data is shown."""

    TABLE = "table"
    JSON = "json"


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], output: OutputFormat) -> None:
    """Prints rows.

    Args:
        rows: Each has all of its data; JSON shows all of it.
        columns: What a table shows: key in the row to title.
        output: How.
    """
    if output is OutputFormat.JSON:
        show_json(list(rows))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in columns.values():
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns))
    _console().print(table)


def show_record(record: Mapping[str, Any], output: OutputFormat) -> None:
    """Prints one thing, a line for each of its values."""
    if output is OutputFormat.JSON:
        show_json(record)
        return
    console = _console()
    width = max(len(key) for key in record)
    for key, value in record.items():
        console.print(f"{key.replace('_', ' '):{width}}  {_cell(value)}", highlight=False, markup=False)


def show_json(value: object) -> None:
    """Prints one JSON document and a line end."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def show_json_line(value: object) -> None:
    """Prints one JSON document on one line, at once: for streams."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Prints a line for a person, on standard error."""
    sys.stderr.write(text + "\n")


def rfc3339(moment: datetime | None) -> str | None:
    """A moment as data; None stays None."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if 999.5 <= abs(value) < 1e15 else f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) for each in value) or "-"
    return str(value)
