"""What the planning benchmarks share: Markdown tables, JSON files, percent."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def percent(value: float | None, digits: int = 1) -> str:
    """A share in percent; a dash for None."""
    return "-" if value is None else f"{100.0 * value:.{digits}f}"


def span(values: Sequence[float], digits: int = 1, between: str = " to ") -> str:
    """The least and the largest of some figures; one figure where they are the same."""
    low, high = (f"{each:.{digits}f}" for each in (min(values), max(values)))
    return low if low == high else f"{low}{between}{high}"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write_json(path: Path, rows: Any) -> None:
    """Writes rows; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
