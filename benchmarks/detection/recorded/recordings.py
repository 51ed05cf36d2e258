"""Recordings of jobs and what was done to them: ``python -m benchmarks.detection.recorded.recordings FOLDER``.

The folder holds ``NAME.csv.gz`` and ``truth.csv`` (name, ranks, fault, culprit_ranks, begin_iteration, end_iteration,
measured_factor, cpu_factor, load). Each goes through ``evenkeel replay --format iterations``, with all clocks and by
the wall alone; with ``--live`` through the detector of the service. Beside each delay stands the limit: no test that
keeps the budget finds the change sooner on average (Lorden 1971; Lai 1998), in noise as this recording shows it before
its fault.
"""

import argparse
import csv
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.detection.recorded.recorded_frames import recorded_frames
from evenkeel.offline.findings import Summary
from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.iterations.clocks import ClockChoice, clocks_of
from evenkeel.offline.iterations.file import read_iterations
from evenkeel.offline.replay import replay
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.services.detector.domain.job.told.words import AGAINST
from evenkeel.services.detector.domain.scan.residual.clocks import Clock

BUDGET = 1e5
"""Healthy iterations of a job per false verdict."""

SOONEST = 20
"""With all clocks a fault may take so many iterations, or what the limit allows."""

CAUSES = {
    "sleep": Clock.BLOCKED,
    "stops": Clock.BLOCKED,
    "stopped_duty": Clock.BLOCKED,
    "input": Clock.BLOCKED,
    "quota": Clock.WAITING,
    "cgroup_quota": Clock.WAITING,
}
"""The clock that shows a fault; all others are work."""

NEAR = 0.1
"""A throughput is told rightly when it is no farther off."""

_WARM_UP = 20
_SLACK, _TIMES_THE_LIMIT = 4, 2.5
_LONGEST = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was done to a recorded job.

    Attributes:
        name: The recording.
        ranks: Ranks of the job.
        fault: What; ``none`` for a healthy job.
        culprit: The rank, -1 for a healthy job.
        begin: First iteration of the fault.
        end: The first after it.
        factors: How many times longer the culprit took, by the clock that is judged by.
        load: What ran beside.
    """

    name: str
    ranks: int
    fault: str
    culprit: int
    begin: int
    end: int
    factors: dict[ClockChoice, float]
    load: str = ""

    @property
    def cause(self) -> Clock:
        """The clock that shows it."""
        return CAUSES.get(self.fault, Clock.WORK)

    def throughput(self, choice: ClockChoice) -> float:
        """Of the culprit, relative to healthy: what came on top counts by the wall."""
        return 1 / self.factors[choice if self.cause is Clock.WORK else ClockChoice.WALL]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the detector made of a recording.

    Attributes:
        name: The recording.
        clocks: What it was judged by.
        fault: What was done.
        limit: Iterations that no test undercuts; infinite where the clock does not show the fault.
        bar: Iterations within which it must be told; infinite where it need not be.
        delay: Iterations from its beginning to the verdict; None where it was not told.
        throughput: The last one told of the culprit while the fault lasted.
        truth: What its throughput was then.
        cause: The clock that said most, as far as clocks were told apart.
        is_right: It is the one that shows such a fault.
        wrong: Ranks accused of what they had not, and when.
        recovery: Iterations from its end to the recovery; None where there was none.
    """

    name: str
    clocks: str
    fault: str
    limit: float
    bar: float
    delay: int | None
    throughput: float | None
    truth: float
    cause: str
    is_right: bool
    wrong: tuple[tuple[int, int], ...]
    recovery: int | None

    @property
    def holds(self) -> bool:
        """Nobody was accused wrongly, and what must be told was told in time."""
        return not self.wrong and (math.isinf(self.bar) or (self.delay is not None and self.delay <= self.bar))


def read_truth(folder: Path) -> list[Truth]:
    """What was done to the recordings in a folder."""
    with (folder / "truth.csv").open() as file:
        return [
            Truth(
                name=row["name"],
                ranks=int(row["ranks"]),
                fault=row["fault"],
                culprit=int(row["culprit_ranks"] or -1),
                begin=int(row["begin_iteration"] or 0),
                end=int(row["end_iteration"] or 0),
                factors={
                    ClockChoice.ALL: float(row["cpu_factor"] or 1),
                    ClockChoice.WALL: float(row["measured_factor"] or 1),
                },
                load=row["load"],
            )
            for row in csv.DictReader(file)
        ]


def limit_of(path: Path, truth: Truth, choice: ClockChoice) -> float:
    """The soonest mean delay, by how the culprit differs from its peers' mean in healthy iterations: spread, lag one.

    Of a job that has none the iterations of the fault serve: their noise is that of the difference about its mean.
    """
    size = math.log(max(truth.factors[choice], 1.0))
    shows = truth.fault == "work" or (choice is ClockChoice.WALL and truth.fault != "none")
    if not shows or size <= 0:
        return math.inf
    work = np.log(clocks_of(read_iterations(path), choice).work)
    healthy = work[_WARM_UP : truth.begin] if truth.begin > 2 * _WARM_UP else work[_WARM_UP : truth.end]
    differences = healthy[:, truth.culprit] - np.delete(healthy, truth.culprit, axis=1).mean(axis=1)
    apart = differences[np.isfinite(differences)] - np.nanmedian(differences)
    variance = float((1.4826 * np.median(np.abs(apart))) ** 2)
    alike = max(float(np.mean(apart[1:] * apart[:-1]) / np.mean(apart**2)), 0.0)
    information = size**2 * (1 - alike) / (2 * variance * (1 + alike))
    return math.log(max(BUDGET * truth.ranks * min(information, 1.0), math.e)) / information


def verdicts_of(path: Path, choice: ClockChoice, *, live: bool) -> list[Verdict]:
    """What is told of the devices of a recording, by its replay or by the detector of the service."""
    found: Iterable[object]
    if live:
        detector = JobDetector(path.name, iterations_per_false_alarm=BUDGET)
        frames = recorded_frames(path.name, read_iterations(path), choice)
        found = [one for frame in frames for one in detector.observe(frame)]
    else:
        summary = Summary(file=str(path), format=RecordingFormat.ITERATIONS.value)
        found = replay(path, RecordingFormat.ITERATIONS, summary, iterations_per_false_alarm=BUDGET, clocks=choice)
    of_devices = (VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED)
    return [one for one in found if isinstance(one, Verdict) and one.kind in of_devices]


def judge(path: Path, truth: Truth, choice: ClockChoice, *, live: bool = False) -> Outcome:
    """Plays one recording."""
    verdicts = verdicts_of(path, choice, live=live)
    limit = limit_of(path, truth, choice)
    bar = _TIMES_THE_LIMIT * limit + _SLACK
    if choice is ClockChoice.ALL:
        bar = max(SOONEST, bar if math.isfinite(bar) else SOONEST)
    if truth.fault == "none" or bar >= truth.end - truth.begin:
        bar = math.inf
    slow = [(verdict.decided_iteration, verdict.culprits[0].rank, verdict) for verdict in verdicts]
    right = [each for each in slow if each[1] == truth.culprit and each[0] >= truth.begin and each[2].throughput < 1]
    wrong = [each for each in slow if each not in right and each[2].throughput < 1]
    during = [verdict for at, _, verdict in right if at < truth.end]
    cause = _cause_of(during[-1]) if during else ""
    over = [at for at, rank, verdict in slow if rank == truth.culprit and verdict.throughput == 1 and at >= truth.end]
    return Outcome(
        name=truth.name,
        clocks=choice.value,
        fault=truth.fault,
        limit=limit,
        bar=bar,
        delay=right[0][0] - truth.begin + 1 if right else None,
        throughput=during[-1].throughput if during else None,
        truth=truth.throughput(choice) if truth.fault != "none" else 1.0,
        cause=cause,
        is_right=cause == truth.cause.value,
        wrong=tuple((rank, at) for at, rank, _ in wrong),
        recovery=over[0] - truth.end + 1 if over else None,
    )


def _cause_of(verdict: Verdict) -> str:
    """What a verdict says of the clocks, the one that says most first."""
    named = {f"{clock.value} {AGAINST}": clock.value for clock in Clock}
    return next((named[one.name] for one in verdict.evidence if one.name in named), "")


def table_of(outcomes: list[Outcome]) -> str:
    """The outcomes for a page."""
    heads = ("recording", "limit", "bar", "told after", "throughput (true)", "by", "wrongly accused", "recovered after")
    lines = ["| " + " | ".join((*heads, "")) + " |", "|" + "---|" * (len(heads) + 1)]
    for one in outcomes:
        name = f"{one.name}, wall" if one.clocks == ClockChoice.WALL.value else one.name
        limit, bar = (f"{value:.1f}" if value < _LONGEST else "" for value in (one.limit, one.bar))
        delay = "" if one.delay is None else str(one.delay)
        throughput = "" if one.throughput is None else f"{one.throughput:.2f} ({one.truth:.2f})"
        wrong = ", ".join(f"rank {rank} at {at}" for rank, at in one.wrong)
        recovery = "" if one.recovery is None else str(one.recovery)
        verdict = "" if one.holds else "misses"
        lines.append(
            "| " + " | ".join((name, limit, bar, delay, throughput, one.cause, wrong, recovery, verdict)) + " |"
        )
    return "\n".join(lines)


def summary_of(outcomes: list[Outcome]) -> str:
    """How many were found, in time, by the right clock, and with the right severity; who was accused wrongly."""
    sick = [one for one in outcomes if one.fault != "none"]
    found = [one for one in sick if one.delay is not None]
    told = [one for one in found if one.throughput is not None]
    near = sum(abs(one.throughput - one.truth) <= NEAR for one in told if one.throughput is not None)
    accused = sum(bool(one.wrong) for one in outcomes)
    in_time = sum(one.delay <= one.bar for one in found if one.delay is not None)
    return (
        f"\n{sum(one.holds for one in outcomes)} of {len(outcomes)} hold; found {len(found)} of {len(sick)} faults, "
        f"{in_time} in time; of {len(told)} told while they lasted {sum(one.is_right for one in told)} by the clock "
        f"that shows such a fault, {near} with a throughput within {NEAR}; somebody wrongly accused in {accused}"
    )


def write_outcomes(path: Path, outcomes: list[Outcome]) -> None:
    """Keeps them as JSON."""
    path.write_text(json.dumps([asdict(one) | {"holds": one.holds} for one in outcomes], indent=1))


def read_outcomes(path: Path) -> list[Outcome]:
    """What :func:`write_outcomes` kept."""
    kept = json.loads(path.read_text())
    return [Outcome(**{name: value for name, value in one.items() if name != "holds"}) for one in kept]


def main() -> None:
    """Prints the table, and writes the outcomes where they are wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recordings and truth.csv")
    parser.add_argument("--live", action="store_true", help="through the live detector instead of the replay")
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    arguments = parser.parse_args()
    outcomes = [
        judge(arguments.folder / f"{truth.name}.csv.gz", truth, choice, live=arguments.live)
        for choice in ClockChoice
        for truth in read_truth(arguments.folder)
    ]
    print(table_of(outcomes))
    print(summary_of(outcomes))
    if arguments.json:
        write_outcomes(arguments.json, outcomes)


if __name__ == "__main__":
    main()
