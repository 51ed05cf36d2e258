"""What a series of iteration times consists of, and what can be said of it."""

from dataclasses import dataclass
from enum import StrEnum

from evenkeel.services.detector.domain.findings.verdict import Evidence


class SeriesVerdictKind(StrEnum):
    """What can be said of a job without looking at its ranks."""

    JOB_SLOW = "job_slow"
    JOB_RECOVERED = "job_recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One entry of a series.

    Attributes:
        iteration: Its number.
        seconds: How long it took.
        tokens: Its tokens; None where the workload is not known.
        sum_of_squares: Sum of its squared sequence lengths; None where it is not known.
        planned: A planned pause fell into it (evaluation, checkpoint): it is left out.
    """

    iteration: int
    seconds: float
    tokens: float | None = None
    sum_of_squares: float | None = None
    planned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesVerdict:
    """The job became slow, changed its speed, or recovered; nobody is accused.

    Attributes:
        job_id: Job.
        kind: What.
        throughput: Speed relative to healthy.
        throughput_margin: Half-width of its 95 % interval.
        confidence: Probability that it is right.
        first_iteration: First iteration that showed it.
        decided_iteration: Iteration at which it was decided.
        evidence: What it rests on.
    """

    job_id: str
    kind: SeriesVerdictKind
    throughput: float
    throughput_margin: float
    confidence: float
    first_iteration: int
    decided_iteration: int
    evidence: tuple[Evidence, ...]


def evidence_of(
    one: Iteration, *, healthy_seconds: float, ratio: float, nats: float, scale: float, since: int, count: int
) -> tuple[Evidence, ...]:
    """What a verdict rests on.

    Args:
        one: The iteration that decided.
        healthy_seconds: What it was expected to take.
        ratio: Seconds against expectation.
        nats: Evidence.
        scale: Of the noise, log units of time.
        since: First iteration that showed it.
        count: Iterations that it rests on.
    """
    in_this = f"in iteration {one.iteration}; {healthy_seconds:.4f} s expected of a healthy job"
    facts = (
        ("seconds against expectation", ratio, "ratio", f"over {count} iterations since iteration {since}"),
        ("likelihood ratio", nats, "nats", "of a lasting change against noise, summed over iterations"),
        ("noise", 100 * scale, "%", "scale of one healthy iteration's noise"),
        ("seconds", one.seconds, "s", in_this),
    )
    return tuple(Evidence(name=name, value=value, unit=unit, text=text) for name, value, unit, text in facts)
