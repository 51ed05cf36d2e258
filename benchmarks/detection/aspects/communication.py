"""Slow links and groups: ``python -m benchmarks.detection.aspects.communication --shapes 4x2x2 --traces 200``.

The very code of the service reads the messages of the topic. Each trace's score is one line of
``out/benchmarks/detection/communication.jsonl`` as soon as it is known; a run that was stopped goes on where it was,
and cells take turns. Every number is simulated; no hardware is measured.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.detection.traces.link_traces import LinkTrace, Victim, make_link_trace
from benchmarks.detection.traces.score import at_least_percent, at_most
from benchmarks.detection.traces.simulated_run import SHAPES
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.job.job import JobDetector

LINES = Path("out/benchmarks/detection/communication.jsonl")
SLOWDOWNS = (10.0, 25.0, 50.0, 100.0)
_TURN = 10
_HEADINGS = (
    "shape",
    "victim",
    "slow %",
    "traces",
    "found % (95 %: at least)",
    "right % (at least)",
    "iterations, median (p95)",
    "severity error",
    "recovery told %",
    "false / 1000 it (at most)",
    "devices accused",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceScore:
    """The detector on one trace.

    Attributes:
        num_iterations: Length of the trace.
        has_fault: Whether any communication was slow.
        found: It was told of while it lasted, whoever was named.
        right: The first that was named then was the victim.
        delay: Iterations from the onset to the victim's verdict; 1 = in the first slow iteration.
        severity_error: Error of the victim's speed as last told while it lasted, in points.
        ended: The fault was found, and ended ten iterations or more before the trace did.
        told_of_end: And the recovery was told.
        num_false: Verdicts about communication that name anybody else, or come when nothing is slow.
        num_devices: Healthy devices called slow.
    """

    num_iterations: int
    has_fault: bool
    found: bool = False
    right: bool = False
    delay: int | None = None
    severity_error: float | None = None
    ended: bool = False
    told_of_end: bool = False
    num_false: int = 0
    num_devices: int = 0


def score_trace(trace: LinkTrace) -> TraceScore:
    """Runs the detector over a trace and compares what it says with the truth."""
    detector = JobDetector(trace.name)
    verdicts: list[Verdict] = []
    for frame in trace.observations():
        verdicts += [one for one in detector.observe(frame) if isinstance(one, Verdict)]
    slow = [one for one in verdicts if one.kind is VerdictKind.COMMUNICATION_SLOW]
    over = [one for one in verdicts if one.kind is VerdictKind.COMMUNICATION_RECOVERED]
    compute = [one for one in verdicts if one.kind is VerdictKind.COMPUTE_SLOW]
    accused = {one.culprits[0].rank for one in compute} - {trace.slow_device}
    fault = trace.fault
    if fault is None:
        return TraceScore(
            num_iterations=trace.num_iterations, has_fault=False, num_false=len(slow), num_devices=len(accused)
        )
    # A verdict may come in the iteration after the last slow one.
    during = [one for one in slow if fault.onset <= one.decided_iteration <= fault.stop]
    right = [one for one in during if _ranks(one) == fault.ranks]
    ended = bool(right) and fault.stop + 10 <= trace.num_iterations
    return TraceScore(
        num_iterations=trace.num_iterations,
        has_fault=True,
        found=bool(during),
        right=bool(during) and _ranks(during[0]) == fault.ranks,
        delay=right[0].decided_iteration - fault.onset + 1 if right else None,
        severity_error=100.0 * abs(right[-1].throughput - 1.0 / fault.factor) if right else None,
        ended=ended,
        told_of_end=ended and any(_ranks(one) == fault.ranks for one in over if one.decided_iteration >= fault.stop),
        num_false=len(slow) - len(right),
        num_devices=len(accused),
    )


def _ranks(verdict: Verdict) -> tuple[int, ...]:
    return tuple(sorted(culprit.rank for culprit in verdict.culprits))


def row_of(shape: str, victim: Victim, percent: float, scores: Sequence[TraceScore]) -> str:
    """One line of the table."""
    faults = [one for one in scores if one.has_fault]
    delays = sorted(one.delay for one in faults if one.delay is not None)
    errors = [one.severity_error for one in faults if one.severity_error is not None]
    found = [one for one in faults if one.found]
    ended = [one for one in faults if one.ended]
    false, iterations = sum(one.num_false for one in scores), sum(one.num_iterations for one in scores)

    def share(some: int, all_of: int) -> str:
        return f"{100.0 * some / all_of:.1f} ({at_least_percent(some, all_of):.1f})" if all_of else "-"

    cells = (
        shape.replace("x", " x "),
        victim.value,
        f"{percent:g}",
        str(len(scores)),
        share(len(found), len(faults)),
        share(sum(one.right for one in found), len(found)),
        f"{median(delays):.0f} ({delays[min(len(delays) - 1, int(0.95 * len(delays)))]})" if delays else "-",
        f"{median(errors):.2f}" if errors else "-",
        f"{100.0 * sum(one.told_of_end for one in ended) / len(ended):.1f}" if ended else "-",
        f"{1000.0 * false / iterations:.3f} ({1000.0 * at_most(false) / iterations:.3f})",
        str(sum(one.num_devices for one in scores)),
    )
    return "| " + " | ".join(cells) + " |"


Cell = tuple[str, Victim, float]


def scores_of(path: Path) -> dict[Cell, list[TraceScore]]:
    """The score of every trace by shape, victim and size, from the lines that runs wrote."""
    found: dict[Cell, list[TraceScore]] = {}
    with path.open() as file:
        for row in map(json.loads, file):
            cell = row["shape"], Victim(row["victim"]), row["slowdown_percent"]
            found.setdefault(cell, []).append(TraceScore(**row["score"]))
    return found


def table(path: Path) -> str:
    """One row a cell, as Markdown."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|" + "---|" * len(_HEADINGS)]
    order = [(shape, victim) for shape in SHAPES for victim in Victim]
    cells = sorted(scores_of(path).items(), key=lambda item: (order.index(item[0][:2]), item[0][2]))
    return "\n".join([*lines, *(row_of(*cell, scores) for cell, scores in cells)])


def main() -> None:
    """Parses the arguments, runs what is not there yet, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["4x2x2"], choices=sorted(SHAPES))
    parser.add_argument("--victims", nargs="+", type=Victim, choices=list(Victim), default=list(Victim))
    parser.add_argument("--slowdowns", nargs="+", type=float, default=SLOWDOWNS, metavar="PERCENT")
    parser.add_argument("--traces", type=int, default=200, help="traces a cell")
    parser.add_argument("--out", type=Path, default=LINES)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    cells: list[Cell] = [
        (shape, victim, percent)
        for shape in arguments.shapes
        for victim in arguments.victims
        for percent in ([0.0] if victim is Victim.NONE else arguments.slowdowns)
    ]
    done: set[tuple[str, str, float, int]] = set()
    if arguments.out.exists():
        rows = map(json.loads, arguments.out.read_text().splitlines())
        done = {(row["shape"], row["victim"], row["slowdown_percent"], row["seed"]) for row in rows}
    for first in range(0, arguments.traces, _TURN):
        for cell in cells:
            for seed in range(first, min(first + _TURN, arguments.traces)):
                if (*cell, seed) not in done:
                    _append(arguments.out, cell, seed)
    print(table(arguments.out))


def _append(path: Path, cell: Cell, seed: int) -> None:
    """Runs the detector over one trace and keeps its score."""
    shape, victim, percent = cell
    score = score_trace(make_link_trace(seed, shape=shape, victim=victim, slowdown_percent=percent))
    line = {
        "shape": shape,
        "victim": victim.value,
        "slowdown_percent": percent,
        "seed": seed,
        "score": asdict(score),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
