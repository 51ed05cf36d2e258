"""What a live campaign has found so far, kept as JSON after every fault and shown as a table. Pure but for the file."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.detection.faults import ADVICE, AFTERMATH_SECONDS, FaultKind, Finding, false_alarms
from benchmarks.detection.score import at_least_percent
from evenkeel.demo.observed.run_log import VerdictSeen

LIVE = Path("out/benchmarks/live_faults.json")
_NO_FAULT = "no fault"
_HEADS = (
    "fault",
    "put in",
    "found % (95 %: at least)",
    "right %",
    "seconds, median (p95)",
    "iterations, median (p95)",
    "speed error, points",
    "whole again",
    "false alarms",
)


@dataclass(slots=True, kw_only=True)
class LiveReport:
    """The campaign's account; several stretches of it, each on a job of its own, add up.

    Attributes:
        seed: Decides the faults.
        findings: One a fault, in order.
        alarms: False alarms: what was said, and during which kind of fault, or during none.
        advice: Findings that accuse nobody, by kind.
        iterations: Of all jobs.
        healthy_seconds: Time of healthy work after the faults.
        healthy_iterations: Iterations in it.
        healthy_verdicts: Everything that was said in it, advice included.
        minutes: In all.
    """

    seed: int
    findings: list[Finding] = field(default_factory=list)
    alarms: list[tuple[str, str]] = field(default_factory=list)
    advice: Counter[str] = field(default_factory=Counter)
    iterations: int = 0
    healthy_seconds: float = 0.0
    healthy_iterations: int = 0
    healthy_verdicts: list[str] = field(default_factory=list)
    minutes: float = 0.0

    def write(self, path: Path) -> None:
        """Keeps everything."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["findings"] = [finding.as_json() for finding in self.findings]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values, indent=1))

    @classmethod
    def read(cls, path: Path) -> "LiveReport":
        """What ``write`` kept."""
        values = json.loads(path.read_text())
        values["findings"] = [Finding.from_json(one) for one in values["findings"]]
        values["alarms"] = [(what, during) for what, during in values["alarms"]]
        return cls(**{**values, "advice": Counter(values["advice"])})

    def take(self, findings: Sequence[Finding], verdicts: Sequence[VerdictSeen]) -> None:
        """Adds one job's findings, and sorts out everything that was said of it."""
        self.findings += findings
        for alarm in false_alarms(findings, verdicts):
            self.alarms.append((in_words(alarm), _during(findings, alarm)))
        self.advice.update(one.kind.value for one in verdicts if one.kind in ADVICE)

    def table(self) -> str:
        """Found, right and false by kind of fault, then the healthy time; Markdown."""
        lines = ["| " + " | ".join(_HEADS) + " |", "|" + "---|" * len(_HEADS)]
        for kind in FaultKind:
            of_kind = [finding for finding in self.findings if finding.fault.kind is kind]
            if of_kind:
                lines.append(_row(kind.value, of_kind, [what for what, during in self.alarms if during == kind.value]))
        lines.append(_row("all", self.findings, [what for what, _ in self.alarms]))
        said = ", ".join(self.healthy_verdicts) or "no verdict"
        advice = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(self.advice.items())) or "none"
        told = [f"{what} ({during})" for what, during in self.alarms]
        lines.append(
            f"\nHealthy work of varied lengths afterwards: {self.healthy_seconds / 60:.3g} minutes, "
            f"{self.healthy_iterations} iterations: {said}. Advice in all: {advice}. "
            f"False alarms: {', '.join(told) or 'none'}. {self.iterations} iterations, {self.minutes:.0f} minutes."
        )
        return "\n".join(lines)


def in_words(verdict: VerdictSeen) -> str:
    """Kind and ranks."""
    ranks = ", ".join(str(culprit.rank) for culprit in verdict.culprits)
    return f"{verdict.kind.value.replace('_', ' ')} [{ranks}]"


def _during(findings: Sequence[Finding], verdict: VerdictSeen) -> str:
    for finding in findings:
        if finding.injected_at <= verdict.decided_at <= finding.ended_at + AFTERMATH_SECONDS:
            return finding.fault.kind.value
    return _NO_FAULT


def _row(what: str, findings: Sequence[Finding], alarms: Sequence[str]) -> str:
    found = [finding for finding in findings if finding.verdict is not None]
    bound = at_least_percent(len(found), len(findings))
    errors = [
        100 * abs(one.throughput_found - one.fault.throughput)
        for one in found
        if one.fault.kind is FaultKind.SLOW and one.throughput_found is not None
    ]
    cells = (
        what,
        str(len(findings)),
        f"{100 * len(found) / len(findings):.1f} ({bound:.1f})" if findings else "-",
        f"{100 * sum(one.right for one in found) / len(found):.1f}" if found else "-",
        _spread([one.seconds for one in found], 2),
        _spread([one.iterations for one in found], 0),
        f"{median(errors):.1f}" if errors else "-",
        f"{sum(one.whole_again for one in findings)} of {len(findings)}",
        str(len(alarms)),
    )
    return "| " + " | ".join(cells) + " |"


def _spread(values: Sequence[float | None], digits: int) -> str:
    known: list[Any] = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    return f"{median(known):.{digits}f} ({known[min(len(known) - 1, int(0.95 * len(known)))]:.{digits}f})"
