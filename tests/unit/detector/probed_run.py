"""What a desk is asked and told, and a run of the detector in which somebody answers its suspicions of links."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.services.detector.domain.findings.verdict import Culprit, Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import (
    FrameObservation,
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
)
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.services.detector.domain.job.job import Finding, JobDetector


def frame_at(iteration: int, *, ranks: Sequence[int] = (), work_keys: Sequence[float] = ()) -> FrameObservation:
    """As much of a frame as a desk looks at."""
    columns = {"ranks": np.array(ranks, dtype=np.int64), "work_keys": np.array(work_keys, dtype=np.float64)}
    return cast(FrameObservation, SimpleNamespace(iteration=iteration, closed_at_unix_seconds=5.0, **columns))


def verdict_on(*ranks: int, kind: VerdictKind, first_iteration: int = 0, incarnation: int = 0) -> Verdict:
    """A verdict that names some ranks."""
    return Verdict(
        verdict_id="a",
        job_id="job",
        kind=kind,
        culprits=tuple(Culprit(rank=rank, incarnation=incarnation) for rank in ranks),
        throughput=0.5,
        confidence=0.99,
        first_iteration=first_iteration,
        decided_iteration=first_iteration + 3,
        decided_at_unix_seconds=5.0,
    )


def probed_run(
    frames: Sequence[FrameObservation], report_on: Callable[[Suspicion], ProbeReport], *, delay: int
) -> tuple[tuple[Observation, ...], tuple[Finding, ...]]:
    """Every probe of links is answered so many frames after it was asked for; what was observed, and what was found."""
    detector, observations, found = JobDetector("job"), list[Observation](), list[Finding]()
    due: dict[int, LivenessObservation] = {}

    def take(observation: Observation) -> list[Finding]:
        observations.append(replace(observation, sequence=len(observations)))
        return detector.observe(observations[-1])

    for number, frame in enumerate(frames):
        if number in due:
            found += take(due[number])
        fresh = take(frame)
        found += fresh
        for one in fresh:
            if isinstance(one, Suspicion) and one.link is not None:
                due[number + delay] = _answer(one, report_on(one), frame.closed_at_unix_seconds)
    return tuple(observations), tuple(found)


def _answer(asked: Suspicion, report: ProbeReport, at_unix_seconds: float) -> LivenessObservation:
    event = ProcessEvent(
        at_unix_seconds=at_unix_seconds,
        kind=ProcessEventKind.PROBED,
        rank=asked.rank,
        incarnation=asked.incarnation,
        probe=report,
    )
    return LivenessObservation(job_id="job", sequence=0, at_unix_seconds=at_unix_seconds, event=event)
