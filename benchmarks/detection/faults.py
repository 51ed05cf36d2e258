"""Faults of a live campaign as data, and what was found of each. Pure."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import Any, ClassVar

from demo.conditions import Moment
from demo.run_log import VerdictSeen
from history.vocabulary import VerdictKind


class FaultKind(StrEnum):
    """What is done to a rank."""

    SLOW = "slow"
    KILL = "kill"
    STOP = "stop"
    HANG = "hang"


_ACCUSATIONS = {
    FaultKind.SLOW: frozenset({VerdictKind.COMPUTE_SLOW}),
    FaultKind.KILL: frozenset({VerdictKind.FAIL_STOP}),
    # A stopped process neither works nor answers: both words are right.
    FaultKind.STOP: frozenset({VerdictKind.HANG, VerdictKind.FAIL_STOP}),
    FaultKind.HANG: frozenset({VerdictKind.HANG}),
}
_SEQUELS = frozenset({VerdictKind.RECOVERED, VerdictKind.REJOINED, VerdictKind.FAIL_STOP})
"""Also said of a victim, rightly, once it is healed or its process replaced."""
_ACCUSES_NOBODY = frozenset(
    {VerdictKind.STAGE_IMBALANCE, VerdictKind.SEQUENCE_IMBALANCE, VerdictKind.JITTER, VerdictKind.SPIKE}
)
_AFTERMATH_SECONDS = 3.0
SLOWDOWNS = (0.05, 0.10, 0.15, 0.25, 0.50, 1.00)
"""How much longer a slow device computes."""
_WEIGHTS = {FaultKind.SLOW: 5, FaultKind.KILL: 2, FaultKind.STOP: 1, FaultKind.HANG: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing to be done.

    Attributes:
        throughput: The device's speed from then on, 1.0 = healthy, 0 = none.
        delay_seconds: Wait so long first, so that it falls on any moment of an iteration.
    """

    kind: FaultKind
    rank: int
    throughput: float
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found of one fault; None where nothing was.

    Attributes:
        verdict: Kind of the first right verdict.
        seconds: From the injection to its decision.
        iterations: Likewise, in iterations.
        throughput_found: What it says of the victim's speed.
        whole_again: Whether the job reached its full shape, and the recovery was noticed.
    """

    HEADER: ClassVar[str] = (
        "| fault | rank | speed | verdict | seconds | iterations | speed found | whole again |\n"
        "|---|---|---|---|---|---|---|---|"
    )

    fault: Fault
    injected_at: float
    ended_at: float
    verdict: str | None
    seconds: float | None
    iterations: int | None
    throughput_found: float | None
    whole_again: bool

    @classmethod
    def of(
        cls, fault: Fault, began: Moment, verdict: VerdictSeen | None, *, ended_at: float, whole_again: bool
    ) -> "Finding":
        """What ``verdict`` says of ``fault``."""
        return cls(
            fault=fault,
            injected_at=began.at,
            ended_at=ended_at,
            verdict=verdict.kind.value if verdict else None,
            seconds=verdict.decided_at - began.at if verdict else None,
            iterations=max(verdict.decided_iteration - began.iteration, 0) if verdict else None,
            throughput_found=verdict.throughput if verdict else None,
            whole_again=whole_again,
        )

    def line(self) -> str:
        """A row of the table."""
        cells = (
            self.fault.kind.value,
            str(self.fault.rank),
            f"{self.fault.throughput:.3f}",
            self.verdict or "-",
            "-" if self.seconds is None else f"{self.seconds:.2f}",
            "-" if self.iterations is None else str(self.iterations),
            "-" if self.throughput_found is None else f"{self.throughput_found:.3f}",
            "yes" if self.whole_again else "no",
        )
        return "| " + " | ".join(cells) + " |"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def draw_faults(count: int, num_ranks: int, seed: int) -> tuple[Fault, ...]:
    """``count`` random faults; the same for the same seed."""
    rng = random.Random(seed)
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    faults = []
    for _ in range(count):
        kind = rng.choices(kinds, weights)[0]
        throughput = 1.0 / (1.0 + rng.choice(SLOWDOWNS)) if kind is FaultKind.SLOW else 0.0
        faults.append(
            Fault(
                kind=kind,
                rank=rng.randrange(num_ranks),
                throughput=throughput,
                delay_seconds=rng.uniform(0.5, 4.0),
            )
        )
    return tuple(faults)


def finding_of(fault: Fault, began: Moment, verdicts: Sequence[VerdictSeen]) -> VerdictSeen | None:
    """The first verdict after the injection that says the right thing of the victim and of nobody else."""
    for verdict in verdicts:
        accused = {culprit.rank for culprit in verdict.culprits}
        if verdict.decided_at >= began.at and verdict.kind in _ACCUSATIONS[fault.kind] and accused == {fault.rank}:
            return verdict
    return None


def false_alarms(findings: Sequence[Finding], verdicts: Sequence[VerdictSeen]) -> list[VerdictSeen]:
    """Verdicts that accuse somebody, or clear somebody, without a fault that explains it."""
    return [
        verdict
        for verdict in verdicts
        if verdict.kind not in _ACCUSES_NOBODY and not any(_explains(finding, verdict) for finding in findings)
    ]


def _explains(finding: Finding, verdict: VerdictSeen) -> bool:
    fault = finding.fault
    return (
        {culprit.rank for culprit in verdict.culprits} == {fault.rank}
        and verdict.kind in _ACCUSATIONS[fault.kind] | _SEQUELS
        and finding.injected_at <= verdict.decided_at <= finding.ended_at + _AFTERMATH_SECONDS
    )


def summary_of(findings: Sequence[Finding]) -> dict[str, Any]:
    """Counts and medians by kind of fault."""
    by_kind = {}
    for kind in FaultKind:
        of_kind = [finding for finding in findings if finding.fault.kind is kind]
        found = [finding for finding in of_kind if finding.verdict is not None]
        if not of_kind:
            continue
        by_kind[kind.value] = {
            "injected": len(of_kind),
            "found": len(found),
            "whole_again": sum(finding.whole_again for finding in of_kind),
            "median_seconds": _median([finding.seconds for finding in found]),
            "median_iterations": _median([finding.iterations for finding in found]),
        }
    errors = [
        abs(finding.throughput_found - finding.fault.throughput)
        for finding in findings
        if finding.fault.kind is FaultKind.SLOW and finding.throughput_found is not None
    ]
    return {
        "faults": len(findings),
        "found": sum(finding.verdict is not None for finding in findings),
        "median_speed_error": _median(errors),
        "by_kind": by_kind,
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
