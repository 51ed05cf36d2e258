"""What a replay found, as plain values with stable names: a verdict a line, and a summary."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from evenkeel.offline.series.finding import SeriesVerdict
from evenkeel.offline.tables.skipped import Skipped
from evenkeel.services.detector.domain.findings.verdict import Verdict


def verdict_row(verdict: Verdict | SeriesVerdict) -> dict[str, Any]:
    """A verdict; those of a series accuse nobody."""
    row = asdict(verdict)
    row["kind"] = verdict.kind.value
    row.setdefault("culprits", ())
    return row


@dataclass(slots=True, kw_only=True)
class Summary:
    """What was read and what was found.

    Attributes:
        file: The recording.
        format: How it was read.
        jobs: Jobs in it.
        num_iterations: Iterations read.
        num_planned: Of those, iterations with a planned pause, which are not judged.
        first_iteration: First iteration read, None if there was none.
        last_iteration: Last iteration read.
        num_rank_samples: Samples of ranks read; 0 for a series.
        verdicts: How many of each kind.
        accused_ranks: Ranks named as culprits, by job.
        still_slow: Who is slow when the recording ends: "job/rank", or the job of a series.
        skipped: Messages that could not be used.
        notes: What a reader should know.
    """

    file: str
    format: str
    jobs: list[str] = field(default_factory=list)
    num_iterations: int = 0
    num_planned: int = 0
    first_iteration: int | None = None
    last_iteration: int | None = None
    num_rank_samples: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    accused_ranks: dict[str, list[int]] = field(default_factory=dict)
    still_slow: list[str] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)
    notes: list[str] = field(default_factory=list)

    def saw(self, job_id: str, iteration: int, *, planned: bool, num_ranks: int) -> None:
        """Counts an iteration."""
        if job_id not in self.jobs:
            self.jobs.append(job_id)
        self.num_iterations += 1
        self.num_planned += planned
        self.num_rank_samples += num_ranks
        if self.first_iteration is None:
            self.first_iteration = iteration
        self.last_iteration = iteration

    def found(self, verdict: Verdict | SeriesVerdict) -> None:
        """Counts a verdict."""
        self.verdicts[verdict.kind.value] += 1
        if isinstance(verdict, SeriesVerdict):
            who = [verdict.job_id]
        else:
            who = [f"{verdict.job_id}/{culprit.rank}" for culprit in verdict.culprits]
            accused = self.accused_ranks.setdefault(verdict.job_id, [])
            accused += [one.rank for one in verdict.culprits if one.rank not in accused and verdict.throughput < 1]
        for name in who:
            if name in self.still_slow:
                self.still_slow.remove(name)
            if verdict.throughput < 1:
                self.still_slow.append(name)

    def to_plain(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        skipped = {"count": self.skipped.count, "reasons": dict(self.skipped.reasons), "first": self.skipped.first}
        return {
            **asdict(self),
            "verdicts": dict(self.verdicts),
            "num_verdicts": self.verdicts.total(),
            "skipped": skipped,
        }
