"""Faults of a live campaign as data, and what was found of each. Pure."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar

from evenkeel.demo.observed.run_log import VerdictSeen
from evenkeel.demo.script.conditions import Moment
from evenkeel.history.vocabulary import VerdictKind


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
ADVICE = frozenset(
    {
        VerdictKind.STAGE_IMBALANCE,
        VerdictKind.SEQUENCE_IMBALANCE,
        VerdictKind.JITTER,
        VerdictKind.SPIKE,
        VerdictKind.INPUT_STALL,
        VerdictKind.PERIODIC_PAUSE,
    }
)
"""Reported with advice: nobody is accused and no plan follows."""

_CLEARS = frozenset({VerdictKind.RECOVERED, VerdictKind.REJOINED, VerdictKind.COMMUNICATION_RECOVERED})
AFTERMATH_SECONDS = 3.0
"""After the job is whole again, in which more may be said of the fault."""

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
        right: Nobody else, and nothing else, was accused before it.
        whole_again: Whether the job reached its full shape, and the recovery was noticed.
    """

    HEADER: ClassVar[str] = (
        "| fault | rank | speed | verdict | right | seconds | iterations | speed found | whole again |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )

    fault: Fault
    injected_at: float
    ended_at: float
    verdict: str | None
    seconds: float | None
    iterations: int | None
    throughput_found: float | None
    right: bool
    whole_again: bool

    @classmethod
    def of(
        cls,
        fault: Fault,
        began: Moment,
        verdicts: Sequence[VerdictSeen],
        *,
        ended_at: float,
        whole_again: bool,
    ) -> "Finding":
        """What ``verdicts``, in the order in which they were decided, say of ``fault``."""
        verdict = finding_of(fault, began, verdicts)
        return cls(
            fault=fault,
            injected_at=began.at,
            ended_at=ended_at,
            verdict=verdict.kind.value if verdict else None,
            seconds=verdict.decided_at - began.at if verdict else None,
            iterations=max(verdict.decided_iteration - began.iteration, 0) if verdict else None,
            throughput_found=verdict.throughput if verdict else None,
            right=verdict is not None and verdict is _first_accusation(began, verdicts),
            whole_again=whole_again,
        )

    def line(self) -> str:
        """A row of the table."""
        cells = (
            self.fault.kind.value,
            str(self.fault.rank),
            f"{self.fault.throughput:.3f}",
            self.verdict or "-",
            "yes" if self.right else "no",
            "-" if self.seconds is None else f"{self.seconds:.2f}",
            "-" if self.iterations is None else str(self.iterations),
            "-" if self.throughput_found is None else f"{self.throughput_found:.3f}",
            "yes" if self.whole_again else "no",
        )
        return "| " + " | ".join(cells) + " |"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Finding":
        """The finding that ``as_json`` gave."""
        fault = {**values["fault"], "kind": FaultKind(values["fault"]["kind"])}
        return cls(**{**values, "fault": Fault(**fault)})


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


def _first_accusation(began: Moment, verdicts: Sequence[VerdictSeen]) -> VerdictSeen | None:
    accusations = (one for one in verdicts if one.kind not in ADVICE | _CLEARS)
    return next((one for one in accusations if one.decided_at >= began.at), None)


def false_alarms(findings: Sequence[Finding], verdicts: Sequence[VerdictSeen]) -> list[VerdictSeen]:
    """Verdicts that accuse somebody, or clear somebody, without a fault that explains it."""
    return [
        verdict
        for verdict in verdicts
        if verdict.kind not in ADVICE and not any(_explains(finding, verdict) for finding in findings)
    ]


def _explains(finding: Finding, verdict: VerdictSeen) -> bool:
    fault = finding.fault
    return (
        {culprit.rank for culprit in verdict.culprits} == {fault.rank}
        and verdict.kind in _ACCUSATIONS[fault.kind] | _SEQUELS
        and finding.injected_at <= verdict.decided_at <= finding.ended_at + AFTERMATH_SECONDS
    )
