"""ResiHP's scenarios, every system on the same faults: ``python -m benchmarks.planning.resihp``.

Prints tables (Markdown) and writes JSON. Everything is simulated; what the simulation leaves out is in
``docs/simulator.md``. ``--parts`` runs some of the tables, ``--seeds`` sets how many runs a cell is the mean of.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.planning.cases import large_case, resihp_cases
from benchmarks.planning.published import FIG_9, SEVERITIES
from benchmarks.planning.scenarios import (
    FAIL_SLOW,
    FAIL_STOP,
    INTENSITIES,
    MIXED,
    Row,
    fail_slow_rows,
    fail_stop_rows,
    large_row,
    mixed_rows,
    plan_time_rows,
)

PARTS = ("table6", "fig9", "fig10", "large", "plan_time")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.1f}"


def _table(header: list[str], lines: list[list[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cells(row: Row, systems: tuple[str, ...]) -> list[str]:
    cells = []
    for system in systems:
        found = row["systems"][system]
        ended = f" ({100 * found['aborted']:.0f} % end)" if found["aborted"] else ""
        cells.append(_percent(found["throughput"]) + ended)
    return cells


def _of_bound(row: Row) -> list[str]:
    return [_percent(row["systems"][name]["of_bound"]) for name in ("Evenkeel", "Evenkeel + sequence mix")]


def table_6(rows: list[Row]) -> str:
    """Percent of fault-free throughput; published figures first."""
    header = ["model", "every", "published ReCycle", "published Oobleck", "published ResiHP", *FAIL_STOP]
    lines = []
    for row in rows:
        published = [_percent(row["published"][name]) for name in ("ReCycle", "Oobleck", "ResiHP")]
        every = f"{row['interval_seconds'] / 3600:g} h"
        own = [*_cells(row, FAIL_STOP), _percent(row["bound"]), *_of_bound(row)]
        lines.append([row["model"], every, *published, *own])
    return _table([*header, "bound", "of bound", "of bound, mix"], lines)


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
        own = [*_cells(row, FAIL_SLOW), _percent(row["bound"]), *_of_bound(row), f"{over:.2f}"]
        lines.append([row["model"], row["severity"], *own, " / ".join(speedups), " / ".join(said)])
    over_nothing = "over nothing: Greyhound / ResiHP / Evenkeel"
    return _table([*header, over_nothing, "published over nothing: Greyhound / ResiHP"], lines)


def mixed(rows: list[Row]) -> str:
    """Percent of fault-free throughput, and how far ahead of the strengthened systems."""
    header = ["model", *MIXED, "bound", "of bound", "of bound, mix", "Evenkeel / ReCycle", "/ S-Oobleck", "/ ResiHP"]
    lines = []
    for row in rows:
        systems = row["systems"]
        own = systems["Evenkeel"]["throughput"]
        over = [f"{own / systems[name]['throughput']:.2f}" for name in ("ReCycle", "strengthened Oobleck", "ResiHP")]
        name = f"{row['model']} {row.get('intensity', '')}".strip()
        lines.append([name, *_cells(row, MIXED), _percent(row["bound"]), *_of_bound(row), *over])
    return _table(header, lines)


def plan_times(rows: list[Row]) -> str:
    """CPU milliseconds of an answer."""
    lines = [
        [
            str(row["num_devices"]),
            row["situation"],
            f"{1e3 * row['median_seconds']:.0f}",
            f"{1e3 * row['max_seconds']:.0f}",
        ]
        for row in rows
    ]
    return _table(["devices", "situation", "median ms", "max ms"], lines)


def run(parts: list[str], num_seeds: int, num_iterations: int, quota_factor: int) -> dict[str, Any]:
    """Runs the parts, prints each table as it is ready, and returns all rows."""
    cases = resihp_cases(quota_factor)
    seeds = range(num_seeds)
    found: dict[str, Any] = {"seeds": num_seeds, "quota_factor": quota_factor}
    if "plan_time" in parts:
        found["plan_time"] = plan_time_rows([cases[0], cases[1], cases[2], large_case()], 5)
        print(f"## Plan time\n\n{plan_times(found['plan_time'])}\n", flush=True)
    if "fig9" in parts:
        found["fig9"] = fail_slow_rows(cases, 8)
        print(f"## Fail-slow (Fig. 9)\n\n{figure_9(found['fig9'])}\n", flush=True)
    if "fig10" in parts:
        found["fig10"] = mixed_rows(cases, seeds)
        print(f"## Mixed (Fig. 10)\n\n{mixed(found['fig10'])}\n", flush=True)
    if "table6" in parts:
        found["table6"] = fail_stop_rows(cases, seeds)
        print(f"## Fail-stop (Table 6)\n\n{table_6(found['table6'])}\n", flush=True)
    if "large" in parts:
        found["large"] = []
        for intensity in INTENSITIES:
            row = large_row(large_case(), 0, num_iterations, intensity)
            found["large"].append(row)
            print(f"## 256 devices, {num_iterations} iterations, {intensity}\n\n{mixed([row])}\n", flush=True)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=5, help="runs per cell")
    parser.add_argument("--iterations", type=int, default=10_000, help="of the run with 256 devices")
    parser.add_argument("--quota-factor", type=int, default=1, help="micro-batches per replica times this")
    parser.add_argument("--json", type=Path, default=Path("out/planning_fleet.json"), help="where the rows go")
    chosen = parser.parse_args()
    found = run(chosen.parts, chosen.seeds, chosen.iterations, chosen.quota_factor)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
