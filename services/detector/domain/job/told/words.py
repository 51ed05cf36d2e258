"""Findings in the words of a verdict: ids, confidence, and evidence that a person can check."""

import math
from collections.abc import Iterable

from evenkeel.contracts.verdict_ids import AGAIN
from evenkeel.services.detector.domain.findings.verdict import Culprit, Evidence, Verdict, VerdictKind, verdict_id
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.processes.hang import Hang
from evenkeel.services.detector.domain.processes.life import ProcessFinding
from evenkeel.services.detector.domain.scan.residual.clocks import WHAT, Clock
from evenkeel.services.detector.domain.scan.speed_change import SpeedChange

_LARGEST_CONFIDENCE = 0.999


def health_verdict(
    frame: FrameObservation, entry: int, change: SpeedChange, expected_seconds: float, culprit: Culprit
) -> Verdict:
    """A device became slow, changed its speed, or recovered.

    Args:
        frame: The frame that decided.
        entry: Whose device.
        change: What changed.
        expected_seconds: What its work should take.
        culprit: Its rank.
    """
    kind = VerdictKind.RECOVERED if change.recovered else VerdictKind.COMPUTE_SLOW
    observed = float(frame.compute_seconds[entry])
    count = change.num_frames
    ratio = 1 / change.throughput
    work = f"{int(frame.num_micro_batches[entry])} micro-batches of {frame.tokens[entry]:.0f} tokens in all"
    evidence = (
        *clock_evidence(change.ratios.items(), count),
        Evidence(
            name="compute seconds against expectation and peers",
            value=ratio,
            unit="ratio",
            text=f"{ratio:.3f} times what its work costs on a healthy device, over {count} iterations",
        ),
        distance_evidence(change.distance, change.scale),
        Evidence(
            name="compute seconds",
            value=observed,
            unit="s",
            text=f"in iteration {frame.iteration}, for {work}; {expected_seconds:.4f} s expected of a healthy device",
        ),
        Evidence(
            name="waiting seconds",
            value=float(frame.wait_seconds[entry].sum()),
            unit="s",
            text="in the same iteration; a straggler waits less than those who wait for it",
        ),
    )
    return Verdict(
        verdict_id=verdict_id(frame.job_id, kind, culprit.rank, culprit.incarnation, frame.epoch, frame.iteration),
        job_id=frame.job_id,
        kind=kind,
        culprits=(culprit,),
        throughput=change.throughput,
        throughput_margin=change.margin,
        confidence=confidence_of(change.distance),
        first_iteration=change.first_iteration,
        decided_iteration=frame.iteration,
        decided_at_unix_seconds=frame.closed_at_unix_seconds,
        evidence=evidence,
    )


def distance_evidence(distance: float, scale: float) -> Evidence:
    """So many standard errors from healthy, where one iteration scatters by so much."""
    return Evidence(
        name="distance from healthy",
        value=distance,
        unit="standard errors",
        text=f"one iteration's noise is {100 * scale:.2f} %",
    )


def confidence_of(distance: float) -> float:
    """How surely a device is slow that is so many standard errors from healthy, 0.5 to 0.999."""
    return min(1 - 0.5 * math.erfc(distance / math.sqrt(2)), _LARGEST_CONFIDENCE)


AGAINST = "against expectation and peers"
"""What a clock of a device is told against."""


def clock_evidence(ratios: Iterable[tuple[Clock, float]], num_iterations: int) -> tuple[Evidence, ...]:
    """What each clock of a slow device says, the one that says most first; the wall, which has all of them, last.

    Args:
        ratios: Times healthy work, by clock.
        num_iterations: Iterations that they rest on.
    """
    return tuple(
        Evidence(
            name=f"{clock.value} {AGAINST}",
            value=ratio,
            unit="ratio",
            text=f"{ratio:.3f} times healthy work over {num_iterations} iterations: {WHAT[clock]}",
        )
        for clock, ratio in sorted(ratios, key=lambda item: (item[0] is Clock.WALL, -item[1]))
    )


def process_verdict(
    job_id: str, finding: ProcessFinding, culprit: Culprit, iteration: int, at_unix_seconds: float
) -> Verdict:
    """A process died, or its replacement is up."""
    kind = VerdictKind.REJOINED if finding.rejoined else VerdictKind.FAIL_STOP
    return Verdict(
        verdict_id=verdict_id(job_id, kind, finding.rank, finding.incarnation, *([AGAIN] if finding.again else [])),
        job_id=job_id,
        kind=kind,
        culprits=(culprit,),
        throughput=1.0 if finding.rejoined else 0.0,
        confidence=finding.confidence,
        first_iteration=iteration + 1,
        decided_iteration=iteration + 1,
        decided_at_unix_seconds=at_unix_seconds,
        evidence=tuple(Evidence(name="process", value=1.0, unit="", text=text) for text in finding.evidence),
    )


def hang_verdict(job_id: str, hang: Hang, culprit: Culprit, at_unix_seconds: float) -> Verdict:
    """A rank does not arrive where others wait for it."""
    kind = VerdictKind.HANG
    how = "nothing is heard from it" if hang.silent else f"it stands in {hang.operation!r}"
    waiting = ", ".join(str(rank) for rank in hang.victims[:16])
    return Verdict(
        verdict_id=verdict_id(job_id, kind, hang.rank, hang.incarnation, hang.iteration),
        job_id=job_id,
        kind=kind,
        culprits=(culprit,),
        throughput=0.0,
        confidence=0.99 if hang.named else 0.95,
        first_iteration=hang.iteration,
        decided_iteration=hang.iteration,
        decided_at_unix_seconds=at_unix_seconds,
        evidence=(
            Evidence(name="standing still", value=hang.stuck_seconds, unit="s", text=f"{how}; last {hang.operation!r}"),
            Evidence(name="ranks that wait", value=float(len(hang.victims)), unit="ranks", text=f"ranks {waiting}"),
            Evidence(name="ranks that name it", value=float(hang.named), unit="ranks", text="as the one they wait for"),
        ),
    )


def moving_again_verdict(frame: FrameObservation, culprit: Culprit, stuck_iteration: int) -> Verdict:
    """A rank that hung finished the iteration after all."""
    kind = VerdictKind.RECOVERED
    text = f"it hung in iteration {stuck_iteration} and has now finished iteration {frame.iteration}"
    return Verdict(
        verdict_id=verdict_id(frame.job_id, kind, "hang", culprit.rank, culprit.incarnation, stuck_iteration),
        job_id=frame.job_id,
        kind=kind,
        culprits=(culprit,),
        throughput=1.0,
        confidence=0.99,
        first_iteration=frame.iteration,
        decided_iteration=frame.iteration,
        decided_at_unix_seconds=frame.closed_at_unix_seconds,
        evidence=(Evidence(name="progress", value=float(frame.iteration), unit="iteration", text=text),),
    )
