"""A run of the detector in which somebody answers its suspicions of links."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from evenkeel.services.detector.domain.frames.observation import (
    FrameObservation,
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
)
from evenkeel.services.detector.domain.frames.probe_reports import LinkProbeReport
from evenkeel.services.detector.domain.job.job import Finding, JobDetector
from evenkeel.services.detector.domain.probes.desk import Suspicion


def probed_run(
    frames: Sequence[FrameObservation], report_on: Callable[[Suspicion], LinkProbeReport], *, delay: int
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


def _answer(asked: Suspicion, report: LinkProbeReport, at_unix_seconds: float) -> LivenessObservation:
    event = ProcessEvent(
        at_unix_seconds=at_unix_seconds,
        kind=ProcessEventKind.PROBED,
        rank=asked.rank,
        incarnation=asked.incarnation,
        probe=report,
    )
    return LivenessObservation(job_id="job", sequence=0, at_unix_seconds=at_unix_seconds, event=event)
