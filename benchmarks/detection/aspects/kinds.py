"""Every kind of finding beside slow devices and links: ``python -m benchmarks.detection.aspects.kinds --traces 200``.

A trace is a run of 4 x 2 x 2 ranks with one affliction (``simulator/job/afflictions.py``): whom, when and how bad are
drawn afresh. Found: the wanted verdict comes after the onset and names whom it concerns. Anything else that is said
of a healthy device, or of the job, is false; so is everything said of healthy runs and of planned pauses. Lines go to
``out/benchmarks/detection/kinds.jsonl`` as they are known.
"""

import argparse
import json
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.detection.traces.frames import frames_of
from benchmarks.detection.traces.score import at_least_percent, at_most
from benchmarks.detection.traces.simulated_run import HARDWARE, OPERATION_NOISE_SIGMA, job_of_shape
from benchmarks.detection.traces.traces import Trace
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.simulator.job.afflictions import Afflicted, Affliction, afflict
from evenkeel.simulator.job.noise import rank_noise, resampled_factors
from evenkeel.simulator.job.pipeline_run import run_pipeline

LINES = Path("out/benchmarks/detection/kinds.jsonl")
ITERATIONS = 400
ITERATION_SECONDS = 10.0
_SLOW_NOW_AND_THEN = frozenset((Affliction.JITTER, Affliction.RANK_PAUSES))
"""Calling the victim of these slow is not false: it is, in some of its iterations."""

WANTED: dict[Affliction, frozenset[VerdictKind]] = {
    Affliction.NONE: frozenset(),
    Affliction.PLANNED_PAUSES: frozenset(),
    Affliction.INTERMITTENT: frozenset({VerdictKind.COMPUTE_SLOW}),
    Affliction.STAGE_IMBALANCE: frozenset({VerdictKind.STAGE_IMBALANCE}),
    Affliction.SEQUENCE_IMBALANCE: frozenset({VerdictKind.SEQUENCE_IMBALANCE}),
    Affliction.INPUT_STALL: frozenset({VerdictKind.INPUT_STALL}),
    Affliction.JITTER: frozenset({VerdictKind.JITTER}),
    Affliction.RANK_PAUSES: frozenset({VerdictKind.PERIODIC_PAUSE}),
    Affliction.JOB_PAUSES: frozenset({VerdictKind.PERIODIC_PAUSE}),
    Affliction.NOT_FINITE: frozenset({VerdictKind.NOT_FINITE}),
    Affliction.LOSS_SPIKE: frozenset({VerdictKind.SPIKE}),
    Affliction.GRADIENT_SPIKE: frozenset({VerdictKind.SPIKE}),
    Affliction.CORRUPTION: frozenset({VerdictKind.SUSPECTED_CORRUPTION}),
    Affliction.SEVERAL: frozenset({VerdictKind.COMPUTE_SLOW, VerdictKind.INPUT_STALL}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindScore:
    """One trace.

    Attributes:
        found: All wanted verdicts came and named the right ranks.
        delay: Iterations from the onset to the last of them; 0 where not found.
        num_false: Verdicts that nothing in the truth explains.
        num_slow: COMPUTE_SLOW verdicts; an intermittent device that flaps has many.
        false_kinds: What the false ones were.
    """

    found: bool
    delay: int
    num_false: int
    num_slow: int
    false_kinds: tuple[str, ...]


def kind_trace(what: Affliction, index: int, *, shape: str = "4x2x2") -> tuple[Trace, Afflicted]:
    """One trace of an affliction."""
    rng = np.random.default_rng(zlib.crc32(what.encode()) * 1_000_000 + index)
    layout, model, workload = job_of_shape(rng, shape, ITERATIONS, length_scale=4.0, tail=1.0)
    case = afflict(rng, what, layout=layout, model=model, workload=workload, iteration_seconds=ITERATION_SECONDS)
    shape_of = case.slowdown.shape
    slowdown = case.slowdown * resampled_factors(rng, ITERATIONS)[:, None]
    slowdown = slowdown * rank_noise(rng, shape_of, sigma=OPERATION_NOISE_SIGMA)
    times = run_pipeline(model=case.model, layout=layout, hardware=HARDWARE, workload=case.workload, slowdown=slowdown)
    # Everybody waits at the step for whoever fetched its input late, and for what pauses the job.
    late = case.signals.data_seconds.max(axis=1, keepdims=True) + case.pause_seconds[:, None]
    times.wall[:] += late
    times.waiting_vote[:] += late - case.signals.data_seconds
    trace = Trace(
        name=f"{what}-{index}",
        layout=layout,
        model=case.model,
        hardware=HARDWARE,
        workload=case.workload,
        times=times,
        faults=(),
        slowdown=slowdown,
        signals=case.signals,
    )
    return trace, case


def score_kind(what: Affliction, trace: Trace, case: Afflicted) -> KindScore:
    """Runs the service's detector over a trace and compares what it says with the truth."""
    detector = JobDetector(trace.name)
    first: dict[VerdictKind, int] = {}
    num_slow, false = 0, []
    accused = set(case.ranks[:1]) if what is Affliction.SEVERAL else set(case.ranks)
    for frame in frames_of(trace):
        for verdict in detector.observe(frame):
            if not isinstance(verdict, Verdict):
                continue
            named = {culprit.rank for culprit in verdict.culprits}
            sick = verdict.kind in (VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED)
            whom = set(case.ranks[1:]) if what is Affliction.SEVERAL and not sick else accused
            num_slow += verdict.kind is VerdictKind.COMPUTE_SLOW
            right = verdict.kind in WANTED[what] and verdict.decided_iteration >= case.onset and named <= whom
            healed = (
                verdict.kind is VerdictKind.RECOVERED and VerdictKind.COMPUTE_SLOW in WANTED[what] and named <= whom
            )
            if right and (named or not whom):
                first.setdefault(verdict.kind, verdict.decided_iteration)
            elif not healed and not (sick and what in _SLOW_NOW_AND_THEN and named <= whom):
                false.append(verdict.kind.value)
    found = set(first) == set(WANTED[what])
    delay = max(first.values()) - case.onset + 1 if found and first else 0
    return KindScore(found=found, delay=delay, num_false=len(false), num_slow=num_slow, false_kinds=tuple(false))


def table(path: Path) -> str:
    """What was found of each kind, as Markdown."""
    rows: dict[str, list[KindScore]] = {}
    with path.open() as file:
        for line in map(json.loads, file):
            rows.setdefault(line["what"], []).append(KindScore(**line["score"]))
    heads = ("what", "traces", "found % (95 %: at least)", "iterations, median (p95)", "false / 1000 it (at most)")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for what in Affliction:
        scores = rows.get(what.value, [])
        if not scores:
            continue
        false = sum(score.num_false for score in scores)
        iterations = ITERATIONS * len(scores)
        share, delay = "-", "-"
        if WANTED[what]:
            found = sum(score.found for score in scores)
            share = f"{100 * found / len(scores):.1f} ({at_least_percent(found, len(scores)):.1f})"
            delays = sorted(score.delay for score in scores if score.found)
            if delays:
                delay = f"{delays[len(delays) // 2]} ({delays[int(0.95 * (len(delays) - 1))]})"
        kinds = Counter(kind for score in scores for kind in score.false_kinds)
        told = f": {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}" if kinds else ""
        bound = f"{1000 * false / iterations:.3f} ({1000 * at_most(false) / iterations:.3f}){told}"
        lines.append(f"| {what.value.replace('_', ' ')} | {len(scores)} | {share} | {delay} | {bound} |")
    return "\n".join(lines)


def main() -> None:
    """Runs what is not there yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=200, help="traces a kind; healthy ones as many as of all others")
    parser.add_argument("--kinds", nargs="+", type=Affliction, default=list(Affliction))
    parser.add_argument("--out", type=Path, default=LINES)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done: set[tuple[str, int]] = set()
    if arguments.out.exists():
        done = {(row["what"], row["index"]) for row in map(json.loads, arguments.out.read_text().splitlines())}
    for turn in range(0, arguments.traces, 10):
        for what in arguments.kinds:
            scale = len(arguments.kinds) - 1 if what is Affliction.NONE and len(arguments.kinds) > 1 else 1
            for index in range(turn * scale, min(turn + 10, arguments.traces) * scale):
                if (what.value, index) in done:
                    continue
                score = score_kind(what, *kind_trace(what, index))
                line = {
                    "what": what.value,
                    "index": index,
                    "score": {name: getattr(score, name) for name in score.__slots__},
                }
                with arguments.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    print(table(arguments.out))


if __name__ == "__main__":
    main()
