"""Scores findings against the truth of their traces: what the tables show."""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import beta, chi2

from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.traces.traces import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceScore:
    """One detector on one trace.

    Attributes:
        num_iterations: Length of the trace.
        num_faults: Victims.
        num_found: Victims accused while they were slow.
        delays: Iterations from onset to accusation of each victim found; 1 = in the first slow iteration.
        severity_errors: Absolute error of the throughput of each victim found, in points (hundredths).
        num_false: Alarms that accuse a healthy rank, or nobody.
    """

    num_iterations: int
    num_faults: int
    num_found: int
    delays: tuple[int, ...]
    severity_errors: tuple[float, ...]
    num_false: int


def score_trace(trace: Trace, findings: Sequence[Finding]) -> TraceScore:
    """Compares one detector's findings with the truth.

    A finding is right when everyone it accuses is a victim that was slow at the time.
    """
    delays, errors, num_false = [], [], 0
    found: set[int] = set()
    faults = {rank: fault for fault in trace.faults for rank in fault.ranks}
    for finding in findings:
        right = bool(finding.ranks) and all(
            rank in faults and faults[rank].onset <= finding.iteration < faults[rank].stop for rank in finding.ranks
        )
        if not right:
            num_false += 1
            continue
        for rank in finding.ranks:
            if rank not in found:
                found.add(rank)
                delays.append(finding.iteration - faults[rank].onset + 1)
                errors.append(100.0 * abs(finding.throughput - faults[rank].throughput))
    return TraceScore(
        num_iterations=trace.num_iterations,
        num_faults=len(faults),
        num_found=len(found),
        delays=tuple(delays),
        severity_errors=tuple(errors),
        num_false=num_false,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellScore:
    """One detector over all traces of a cell. ``None`` = nothing to measure it on.

    Attributes:
        num_traces: Traces.
        num_faults: Victims in them.
        found_percent: Victims found.
        found_at_least_percent: Lower end of its 95 % interval.
        median_delay: Iterations to the accusation.
        p95_delay: The same, 95th percentile.
        median_severity_error: Points.
        right_percent: Alarms that were right, of all alarms.
        right_at_least_percent: Lower end of its 95 % interval.
        false_per_1000_iterations: False alarms.
        false_at_most_per_1000: Upper end of its 95 % interval.
        false_per_trace: The figure that ResiHP prints.
    """

    num_traces: int
    num_faults: int
    found_percent: float | None
    found_at_least_percent: float | None
    median_delay: float | None
    p95_delay: float | None
    median_severity_error: float | None
    right_percent: float | None
    right_at_least_percent: float | None
    false_per_1000_iterations: float
    false_at_most_per_1000: float
    false_per_trace: float


def score_cell(scores: Sequence[TraceScore]) -> CellScore:
    """Adds up the traces of one cell; there must be at least one."""
    num_faults = sum(score.num_faults for score in scores)
    num_found = sum(score.num_found for score in scores)
    num_false = sum(score.num_false for score in scores)
    num_iterations = sum(score.num_iterations for score in scores)
    delays = sorted(delay for score in scores for delay in score.delays)
    errors = sorted(error for score in scores for error in score.severity_errors)
    return CellScore(
        num_traces=len(scores),
        num_faults=num_faults,
        found_percent=100.0 * num_found / num_faults if num_faults else None,
        found_at_least_percent=at_least_percent(num_found, num_faults),
        median_delay=_quantile(delays, 0.5),
        p95_delay=_quantile(delays, 0.95),
        median_severity_error=_quantile(errors, 0.5),
        right_percent=100.0 * num_found / (num_found + num_false) if num_found + num_false else None,
        right_at_least_percent=at_least_percent(num_found, num_found + num_false),
        false_per_1000_iterations=1000.0 * num_false / num_iterations,
        false_at_most_per_1000=1000.0 * at_most(num_false) / num_iterations,
        false_per_trace=num_false / len(scores),
    )


def at_least_percent(count: int, total: int) -> float | None:
    """Lower end of the 95 % interval of a share, percent (Clopper and Pearson 1934); None of nothing."""
    if total == 0:
        return None
    return 100.0 * float(beta.ppf(0.05 if count == total else 0.025, count, total - count + 1)) if count else 0.0


def at_most(count: int) -> float:
    """Upper end of the 95 % interval of the mean of a Poisson count (Garwood 1936)."""
    return float(chi2.ppf(0.95 if count == 0 else 0.975, 2 * count + 2)) / 2


def _quantile(ordered: Sequence[float], quantile: float) -> float | None:
    return float(ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]) if ordered else None
