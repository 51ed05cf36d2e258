"""All planning benchmarks, one command: ``python -m benchmarks.planning``.

Each part is a command of its own, run one after the other as its own process; its tables go to the screen and to
``OUT/<part>.md``, its rows to ``OUT/<part>.json``. A part whose tables are there already is not run again, so a run
that was stopped goes on. About an hour of CPU time in full; ``--quick`` runs each part small, in minutes.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One benchmark.

    Attributes:
        module: In ``benchmarks.planning``.
        full: Its arguments.
        quick: Its arguments for a small run.
        data_path: What it reads of the data folder, named to it first; empty = nothing.
    """

    module: str
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    data_path: str = ""


SMALL = ("--models", "llama2-7b")
PARTS = {
    "hundred_thousand": Part(
        module="papers.hundred_thousand",
        full=("--days", "0.5"),
        quick=("--days", "0.1", "--stalls", "15"),
    ),
    "recurring": Part(
        module="papers.recurring",
        full=("--iterations", "2000"),
        quick=("--iterations", "300", "--intensities", "heavy"),
    ),
    "baselines": Part(module="baselines", quick=("--traces", "4", *SMALL)),
    "resihp": Part(module="papers.resihp", full=("--seeds", "2"), quick=("--parts", "table6", *SMALL)),
    "fig2": Part(module="papers.amplification"),
    "availability": Part(
        module="papers.availability",
        full=("--devices", "8192", "--seeds", "1", "--widths", "32"),
        quick=("--devices", "4096", "--seeds", "1", "--widths", "32"),
    ),
    "spare_domains": Part(module="papers.spare_domains", quick=("--devices", "4096", "--seeds", "1", "--widths", "32")),
    "half_lost": Part(module="papers.half_lost", full=("--every", "32"), quick=("--every", "256")),
    "half_lost_replicas": Part(
        module="papers.half_lost",
        full=("--every", "32", "--victims", "replica"),
        quick=("--every", "256", "--victims", "replica"),
    ),
    "plan_time": Part(module="solver.plan_time", quick=("--states", "10", "--large-states", "2")),
    "more_capacity": Part(module="solver.more_capacity", full=("--states", "1000"), quick=("--states", "20")),
    "exact": Part(module="solver.exact", full=("--states", "500"), quick=("--states", "20")),
    "fidelity": Part(
        module="live.fidelity",
        full=("--parts", "faults", "--pace", "3", "--iterations", "10"),
        quick=("--iterations", "10"),
    ),
    "fidelity_shapes": Part(
        module="live.fidelity",
        full=("--parts", "shapes", "--pace", "4", "--iterations", "8", "--link-bytes-per-second", "1e6"),
        quick=("--parts", "shapes", "--iterations", "6"),
    ),
    "routes": Part(module="live.routes", quick=("--iterations", "10")),
    "virtual_stages": Part(module="live.virtual_stages", quick=("--iterations", "10")),
    "mix_live": Part(module="live.mix_live", quick=("--iterations", "8", "--rounds", "2")),
    "sequence_mix": Part(
        module="solver.sequence_mix",
        full=("--iterations", "25"),
        quick=("--iterations", "5"),
        data_path="sequence_lengths/squad_1_1_histogram.csv",
    ),
    "pipelines": Part(module="solver.pipelines", full=("--seconds", "30"), quick=("--seconds", "2")),
}


def command_of(part: Part, rows: Path, *, quick: bool, data: Path | None) -> list[str] | None:
    """The command of a part; None when it needs data that nobody named."""
    found = [sys.executable, "-m", f"benchmarks.planning.{part.module}"]
    if part.data_path:
        if data is None:
            return None
        found.append(str(data / part.data_path))
    return [*found, *(part.quick if quick else part.full), "--json", str(rows)]


def run_part(command: list[str], tables: Path) -> bool:
    """Runs a part and keeps its tables when it came to its end; True then."""
    print(f"$ {' '.join(command[1:])}\n", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode == 0:
        tables.write_text("".join(lines))
    return process.returncode == 0


def main() -> None:
    """Command line. Exit status 1 when a part failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="each part small")
    parser.add_argument("--again", action="store_true", help="also parts whose tables are there")
    parser.add_argument("--data", type=Path, help="folder of the published data sets; without it a part is left out")
    parser.add_argument("--out", type=Path, default=Path("out/planning"))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in chosen.parts:
        tables, rows = chosen.out / f"{name}.md", chosen.out / f"{name}.json"
        if tables.exists() and not chosen.again:
            print(f"{name}: {tables} is there (--again runs it again)\n", flush=True)
            continue
        command = command_of(PARTS[name], rows, quick=chosen.quick, data=chosen.data)
        if command is None:
            print(f"{name}: left out, it needs --data\n", flush=True)
            continue
        started = time.monotonic()
        if not run_part(command, tables):
            failed.append(name)
        print(f"{name}: {time.monotonic() - started:.0f} s\n", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
