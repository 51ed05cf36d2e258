"""The service's own detector, run over a recording."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from evenkeel.attribution import Operations
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.findings import Summary
from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.iterations.clocks import ClockChoice
from evenkeel.offline.iterations.file import read_iterations
from evenkeel.offline.iterations.verdicts import RecordedDevices
from evenkeel.offline.operations.file import read_operations
from evenkeel.offline.operations.frames import frames_of
from evenkeel.offline.operations.step_seconds import step_seconds
from evenkeel.offline.operations.traffic import traffic_of
from evenkeel.offline.samples.file import plain_bytes
from evenkeel.offline.samples.order import ordered_messages
from evenkeel.offline.samples.stream import observations_of
from evenkeel.offline.series.finding import Iteration, SeriesVerdict
from evenkeel.offline.series.series import SeriesDetector
from evenkeel.offline.series_file import read_series
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation, Observation
from evenkeel.services.detector.domain.job.job import JobDetector

FEWEST_STEPS = 12
"""Below this the detector has hardly left its baseline behind."""

_TIMES_TOLD = 200

_Thing = TypeVar("_Thing")


def replay(
    path: Path,
    kind: RecordingFormat,
    summary: Summary,
    *,
    iterations_per_false_alarm: float,
    clocks: ClockChoice = ClockChoice.ALL,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Verdict | SeriesVerdict]:
    """The verdicts of a recording, as they are reached.

    Args:
        path: The recording.
        kind: What it holds.
        summary: Filled on the way; complete when the iterator is through.
        iterations_per_false_alarm: The operator's budget for each job.
        clocks: Which clocks of a recording of iterations to judge by.
        on_progress: Told now and then which share of the recording is behind, 0 to 1, as far as that is known.

    Raises:
        RecordingError: The file cannot be used. Messages of a recorded topic that cannot are skipped and counted.
    """
    job_id = path.name.split(".")[0] or path.name
    if kind is RecordingFormat.SERIES:
        yield from _replay_series(path, job_id, summary, iterations_per_false_alarm, on_progress)
        return
    if kind is RecordingFormat.ITERATIONS:
        yield from _replay_iterations(path, job_id, summary, iterations_per_false_alarm, clocks, on_progress)
        return
    observations: Iterable[Observation]
    heavier_stages: tuple[str, ...] = ()
    if kind is RecordingFormat.OPS:
        recorded = read_operations(path)
        traffic = traffic_of(recorded.operations)
        made = frames_of(recorded.operations, job_id=job_id, traffic=traffic.by_step)
        heavier_stages = made.notes
        summary.notes += (*recorded.notes, *traffic.notes, *heavier_stages)
        observations = _counted(made.frames, len(np.unique(recorded.operations.step)), on_progress, lambda frame: 1)
    else:
        ordered, notes = ordered_messages(path, summary.skipped)
        summary.notes += notes
        messages = _counted(ordered, plain_bytes(path), on_progress, lambda message: message.ByteSize())
        observations = observations_of(messages, summary.skipped)
    slow: set[int] = set()
    try:
        for verdict in _replay_ranks(observations, summary, iterations_per_false_alarm):
            if verdict.kind is VerdictKind.COMPUTE_SLOW:
                slow.update(culprit.rank for culprit in verdict.culprits)
            yield verdict
    except RecordingError as error:
        raise error if str(path) in str(error) else RecordingError(f"{path}: {error}") from error
    if summary.skipped.count and not summary.num_iterations:
        raise RecordingError(f"{path} holds no iteration that can be used: {summary.skipped.text}")
    if kind is RecordingFormat.OPS:
        summary.notes += _without_peers(recorded.operations, slow)
        if not summary.verdicts and not heavier_stages:
            summary.notes += _shared_slowdown(recorded.operations, iterations_per_false_alarm)
    if summary.num_iterations < FEWEST_STEPS:
        text = f"only {summary.num_iterations} iterations: the detector needs about {FEWEST_STEPS} before it judges"
        summary.notes.append(text + (f"; try evenkeel analyze {path}" if kind is RecordingFormat.OPS else ""))


def _counted(
    things: Iterable[_Thing], total: int, on_progress: Callable[[float], None], size_of: Callable[[_Thing], int]
) -> Iterator[_Thing]:
    """The same things, telling how much of ``total`` is behind; 0 for not known."""
    done = told = 0
    for thing in things:
        if total and done >= told:
            on_progress(done / total)
            told = done + max(total // _TIMES_TOLD, 1)
        done += size_of(thing)
        yield thing


def _without_peers(operations: Operations, slow: set[int]) -> list[str]:
    """Where nobody else runs a stage, nothing in a recording tells a slow device from heavier work."""
    _, first = np.unique(operations.rank, return_index=True)
    ranks, stages = operations.rank[first], operations.stage[first]
    alone = [int(rank) for rank in ranks if rank in slow and np.count_nonzero(stages == stages[ranks == rank]) == 1]
    if not alone:
        return []
    who = f"rank{'s' * (len(alone) > 1)} {', '.join(map(str, alone))}"
    return [f"nobody else runs the stage of {who}: heavier work there would look the same as a slow device"]


def _shared_slowdown(operations: Operations, budget: float) -> list[str]:
    """What befalls all workers alike makes none of them stand out, and shows in the length of the steps alone."""
    detector = SeriesDetector("", iterations_per_false_alarm=budget)
    for step, seconds in zip(*step_seconds(operations), strict=True):
        one = Iteration(iteration=int(step), seconds=float(seconds), tokens=None, sum_of_squares=None, planned=False)
        for verdict in detector.observe(one):
            if verdict.throughput < 1:
                since = (
                    f"steps take some {1 / verdict.throughput - 1:.0%} longer from about {verdict.first_iteration} on"
                )
                return [
                    f"{since}, and no worker or link stands out: heavier steps, or something that all of them share"
                ]
    return []


def _replay_series(
    path: Path, job_id: str, summary: Summary, budget: float, on_progress: Callable[[float], None]
) -> Iterator[SeriesVerdict]:
    detector = SeriesDetector(job_id, iterations_per_false_alarm=budget)
    recording = read_series(path)
    summary.notes += recording.notes
    series = recording.iterations
    for one in _counted(series, len(series), on_progress, lambda iteration: 1):
        summary.saw(job_id, one.iteration, planned=one.planned, num_ranks=0)
        for verdict in detector.observe(one):
            summary.found(verdict)
            yield verdict
    if not detector.ready:
        count = len(series) - summary.num_planned
        summary.notes.append(
            f"only {count} iterations to judge: the first {detector.num_to_learn} say where the series stands"
        )
    if all(one.tokens is None for one in series):
        summary.notes.append("no tokens: what the workload explains cannot be told from the rest")


def _replay_iterations(
    path: Path,
    job_id: str,
    summary: Summary,
    budget: float,
    clocks: ClockChoice,
    on_progress: Callable[[float], None],
) -> Iterator[Verdict]:
    recording = read_iterations(path)
    try:
        devices = RecordedDevices(job_id, recording, clocks, iterations_per_false_alarm=budget)
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error
    summary.notes += (*recording.notes, *devices.notes)
    observed = np.isfinite(recording.columns["compute_seconds"]).sum(axis=1).tolist()
    rows = zip(recording.iterations.tolist(), recording.planned.tolist(), observed, devices.verdicts(), strict=True)
    for iteration, planned, num_ranks, found in _counted(rows, len(observed), on_progress, lambda row: 1):
        summary.saw(job_id, iteration, planned=planned, num_ranks=num_ranks)
        for verdict in found:
            summary.found(verdict)
            yield verdict
    if summary.num_iterations - summary.num_planned < FEWEST_STEPS:
        summary.notes.append(
            f"only {summary.num_iterations} iterations: the detector needs about {FEWEST_STEPS} before it judges"
        )


def _replay_ranks(observations: Iterable[Observation], summary: Summary, budget: float) -> Iterator[Verdict]:
    detectors: dict[str, JobDetector] = {}
    for observation in observations:
        detector = detectors.get(observation.job_id)
        if detector is None:
            detector = JobDetector(observation.job_id, iterations_per_false_alarm=budget)
            detectors[observation.job_id] = detector
        if detector.has_taken(observation):
            number = observation.sequence
            summary.skipped.add(
                "repeated", f"number {number} of job {observation.job_id}, or a later one, was read before"
            )
            continue
        if isinstance(observation, FrameObservation):
            planned = bool(observation.planned.any())
            summary.saw(observation.job_id, observation.iteration, planned=planned, num_ranks=len(observation))
        for finding in detector.observe(observation):
            if isinstance(finding, Verdict):
                summary.found(finding)
                yield finding
