"""ResiHP's scenarios, every system on the same faults: ``python -m benchmarks.planning.papers.resihp``.

Prints tables (Markdown) and writes JSON; a cell of a table is the range over the six jobs, the JSON file has each.
Everything is simulated; what the simulation leaves out is in ``docs/simulator.md``. Rows that the JSON file has already
are not run again, so a run that was stopped goes on where it was.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.planning.papers.placements import PLACEMENTS
from benchmarks.planning.papers.published import FIG_9, INTERVALS_SECONDS, SEVERITIES
from benchmarks.planning.papers.scenarios import (
    FAIL_SLOW,
    FAIL_STOP,
    MIXED,
    OURS,
    STALLS_SECONDS,
    Row,
    fail_slow_rows,
    fail_stop_rows,
    mixed_rows,
)
from benchmarks.planning.solver.cases import resihp_cases
from benchmarks.planning.tables import span, table, write_json

PARTS = ("table6", "stalls", "fig9", "fig10")
_HOUR = 3600.0
_cell = partial(span, between="-")


def lines_of(
    rows: Sequence[Row], keys: Mapping[str, Callable[[Row], object]], systems: Sequence[str], rivals: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a table: a line for each combination of keys, a cell the range over the models.

    Args:
        rows: Of all models.
        keys: What a line is told apart by, by the title of its column.
        systems: Whose throughput is shown, percent of fault-free.
        rivals: Over whom the first of ours is shown, as a ratio.
    """
    lines: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault(tuple(str(key(row)) for key in keys.values()), []).append(row)
    header = [*keys, *systems, "bound", "of bound", *(f"/ {rival}" for rival in rivals)]
    found = []
    for names, some in lines.items():
        cells = [_cell([100.0 * row["systems"][name]["throughput"] for row in some]) for name in systems]
        ended = [sum(row["systems"][name]["ended"] > 0.0 for row in some) for name in systems]
        cells = [f"{cell} ({count} end)" if count else cell for cell, count in zip(cells, ended, strict=True)]
        own = [row["systems"][OURS[0]] for row in some]
        cells.append(_cell([100.0 * row["bound"] for row in some]))
        cells.append(_cell([100.0 * each["of_bound"] for each in own]))
        for rival in rivals:
            theirs = [row["systems"][rival]["throughput"] for row in some]
            ratios = [each["throughput"] / other for each, other in zip(own, theirs, strict=True)]
            cells.append(_cell(ratios, 2))
        found.append([*names, *cells])
    return header, found


def run(parts: Sequence[str], models: Sequence[str], seeds: Sequence[int], path: Path) -> None:
    """Runs what the file does not have yet, keeps each model's rows in it, prints each table when it is ready."""
    kept: dict[str, list[Row]] = json.loads(path.read_text()) if path.exists() else {}
    cases = [case for case in resihp_cases() if case.model in models]

    def rows_of(key: str, rows: Callable[[], list[Row]]) -> list[Row]:
        if key not in kept:
            kept[key] = rows()
            write_json(path, kept)
        return kept[key]

    def fail_stop() -> Iterator[Row]:
        for placement, case, seed in product(PLACEMENTS, cases, seeds):
            rows = partial(fail_stop_rows, case, placement, seed)
            yield from rows_of(f"table6 {case.model} {placement} {seed}", rows)

    def stalls() -> Iterator[Row]:
        systems = [name for name in FAIL_STOP if name != OURS[1]]
        for stall, placement, case, seed in product(STALLS_SECONDS, PLACEMENTS, cases, seeds):
            rows = partial(fail_stop_rows, case, placement, seed, systems, INTERVALS_SECONDS[1:2], stall)
            yield from rows_of(f"stalls {case.model} {placement} {stall:g} {seed}", rows)

    def shown(title: str, parts_of: tuple[list[str], list[list[str]]]) -> None:
        print(f"## {title}\n\n{table(*parts_of)}\n", flush=True)

    def every(row: Row) -> str:
        return f"{row['interval_seconds'] / _HOUR:g} h"

    place = {"victims": lambda row: row["placement"]}
    if "table6" in parts:
        keys = {"a death every": every, **place}
        rows = sorted(fail_stop(), key=lambda row: -row["interval_seconds"])
        shown("Fail-stop (Table 6)", lines_of(rows, keys, FAIL_STOP, ("ReCycle", "Oobleck", "ResiHP")))
    if "stalls" in parts:
        systems = [name for name in FAIL_STOP if name != OURS[1]]
        keys = {"stall, s": lambda row: f"{row['stall_seconds']:g}", **place}
        shown(
            "Fail-stop, a death an hour, by the stall of everybody",
            lines_of(list(stalls()), keys, systems, ("Oobleck", "ResiHP")),
        )
    if "fig9" in parts:
        rows = [
            row for case in cases for row in rows_of(f"fig9 {case.model}", partial(fail_slow_rows, case, num_places=8))
        ]
        rows.sort(key=lambda row: list(SEVERITIES).index(row["severity"]))
        keys = {"severity": lambda row: f"{row['severity']} (-{100 - 100 * SEVERITIES[row['severity']]:.0f} %)"}
        shown("Fail-slow (Fig. 9)", lines_of(rows, keys, FAIL_SLOW, ("no mitigation", "Greyhound", "ResiHP")))
    if "fig10" in parts:
        rows = [
            row
            for placement, case, seed in product(PLACEMENTS, cases, seeds)
            for row in rows_of(f"fig10 {case.model} {placement} {seed}", partial(mixed_rows, case, placement, seed))
        ]
        rivals = ("ReCycle", "strengthened Oobleck", "ResiHP")
        shown("Mixed (Fig. 10)", lines_of(rows, place, MIXED, rivals))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=list(FIG_9["ResiHP"]), default=list(FIG_9["ResiHP"]))
    parser.add_argument("--seeds", type=int, default=1, help="orders of victims of each placement")
    parser.add_argument("--json", type=Path, default=Path("out/planning/resihp.json"), help="where the rows go")
    chosen = parser.parse_args()
    run(chosen.parts, chosen.models, range(chosen.seeds), chosen.json)


if __name__ == "__main__":
    main()
