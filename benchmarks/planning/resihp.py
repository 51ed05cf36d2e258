"""ResiHP's scenarios, every system on the same faults: ``python -m benchmarks.planning.resihp``.

Prints tables (Markdown) and writes JSON. Everything is simulated; what the simulation leaves out is in
``docs/simulator.md``. ``--parts`` runs some of the tables, ``--seeds`` sets how many runs a cell is the mean of. Models
that the JSON file has already are not run again, so a run that was stopped goes on where it was.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.planning.cases import resihp_cases
from benchmarks.planning.published import FIG_9, SEVERITIES
from benchmarks.planning.scenarios import (
    FAIL_SLOW,
    FAIL_STOP,
    MIXED,
    Row,
    fail_slow_rows,
    fail_stop_rows,
    mixed_rows,
)
from benchmarks.planning.tables import percent, table, write_json

PARTS = ("fig9", "fig10", "table6")


def _cells(row: Row, systems: tuple[str, ...]) -> list[str]:
    cells = []
    for system in systems:
        found = row["systems"][system]
        ended = f" ({100 * found['aborted']:.0f} % end)" if found["aborted"] else ""
        cells.append(percent(found["throughput"]) + ended)
    return cells


def _of_bound(row: Row) -> list[str]:
    return [percent(row["systems"][name]["of_bound"]) for name in ("Evenkeel", "Evenkeel + sequence mix")]


def table_6(rows: list[Row]) -> str:
    """Percent of fault-free throughput; published figures first."""
    header = ["model", "every", "published ReCycle", "published Oobleck", "published ResiHP", *FAIL_STOP]
    lines = []
    for row in rows:
        published = [percent(row["published"][name]) for name in ("ReCycle", "Oobleck", "ResiHP")]
        every = f"{row['interval_seconds'] / 3600:g} h"
        own = [*_cells(row, FAIL_STOP), percent(row["bound"]), *_of_bound(row)]
        lines.append([row["model"], every, *published, *own])
    return table([*header, "bound", "of bound", "of bound, mix"], lines)


def figure_9(rows: list[Row]) -> str:
    """Percent of fault-free throughput, and speedups over Greyhound and nothing."""
    header = ["model", "severity", *FAIL_SLOW, "bound", "of bound", "of bound, mix", "Evenkeel / Greyhound"]
    lines = []
    for row in rows:
        systems = row["systems"]
        over = systems["Evenkeel"]["throughput"] / systems["Greyhound"]["throughput"]
        nothing = systems["no mitigation"]["throughput"]
        speedups = [f"{systems[name]['throughput'] / nothing:.2f}" for name in ("Greyhound", "ResiHP", "Evenkeel")]
        column = list(SEVERITIES).index(row["severity"])
        published = [FIG_9[name][row["model"]][column] for name in ("Greyhound", "ResiHP")]
        said = ["-" if value is None else f"{value:.2f}" for value in published]
        own = [*_cells(row, FAIL_SLOW), percent(row["bound"]), *_of_bound(row), f"{over:.2f}"]
        lines.append([row["model"], row["severity"], *own, " / ".join(speedups), " / ".join(said)])
    over_nothing = "over nothing: Greyhound / ResiHP / Evenkeel"
    return table([*header, over_nothing, "published over nothing: Greyhound / ResiHP"], lines)


def mixed(rows: list[Row]) -> str:
    """Percent of fault-free throughput, and how far ahead of the strengthened systems."""
    header = ["model", *MIXED, "bound", "of bound", "of bound, mix", "Evenkeel / ReCycle", "/ S-Oobleck", "/ ResiHP"]
    lines = []
    for row in rows:
        systems = row["systems"]
        own = systems["Evenkeel"]["throughput"]
        over = [f"{own / systems[name]['throughput']:.2f}" for name in ("ReCycle", "strengthened Oobleck", "ResiHP")]
        lines.append([row["model"], *_cells(row, MIXED), percent(row["bound"]), *_of_bound(row), *over])
    return table(header, lines)


def run(parts: Sequence[str], models: Sequence[str], num_seeds: int, path: Path) -> None:
    """Runs what the file does not have yet, keeps each model's rows in it, prints each table when it is ready."""
    found: dict[str, list[Row]] = json.loads(path.read_text()) if path.exists() else {}
    cases = [case for case in resihp_cases() if case.model in models]

    def kept(key: str, rows: Callable[[], list[Row]]) -> list[Row]:
        if key not in found:
            found[key] = rows()
            write_json(path, found)
        return found[key]

    seeds = range(num_seeds)
    if "fig9" in parts:
        shown = [row for case in cases for row in kept(f"fig9 {case.model}", partial(fail_slow_rows, [case], 8))]
        print(f"## Fail-slow (Fig. 9)\n\n{figure_9(shown)}\n", flush=True)
    if "fig10" in parts:
        of = f"{num_seeds} runs"
        shown = [row for case in cases for row in kept(f"fig10 {case.model} {of}", partial(mixed_rows, [case], seeds))]
        print(f"## Mixed (Fig. 10)\n\n{mixed(shown)}\n", flush=True)
    if "table6" in parts:
        of = f"{num_seeds} runs"
        shown = [
            row for case in cases for row in kept(f"table6 {case.model} {of}", partial(fail_stop_rows, [case], seeds))
        ]
        print(f"## Fail-stop (Table 6)\n\n{table_6(shown)}\n", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=list(FIG_9["ResiHP"]), default=list(FIG_9["ResiHP"]))
    parser.add_argument("--seeds", type=int, default=5, help="runs per cell")
    parser.add_argument("--json", type=Path, default=Path("out/planning_fleet.json"), help="where the rows go")
    chosen = parser.parse_args()
    run(chosen.parts, chosen.models, chosen.seeds, chosen.json)


if __name__ == "__main__":
    main()
