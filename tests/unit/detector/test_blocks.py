"""Observations that are taken together find what they would find one by one, and leave the same behind."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenkeel.services.detector.domain.detector import JobDetector
from evenkeel.services.detector.domain.observation import (
    FrameObservation,
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
)
from evenkeel.services.detector.domain.state import state_from_bytes, state_to_bytes
from evenkeel.services.detector.domain.verdict import Verdict
from tests.unit.detector.synthetic import SyntheticJob, cube, slow_from, student

NUM_RANKS, NUM_FRAMES = 8, 230


def told(frame: FrameObservation, rng: np.random.Generator) -> FrameObservation:
    """A frame as ranks tell it: losses and norms, micro-batches, and now and then something that is not plain."""
    count, iteration = len(frame), frame.iteration
    everybody = np.ones(count, dtype=np.bool_)
    loss = 3.0 / (1.0 + 0.01 * iteration) * (1.0 + 0.01 * rng.standard_normal())
    tokens = rng.integers(1000, 4000, 4).astype(np.float64)
    frame = replace(
        frame,
        micro_batches=np.column_stack([np.arange(4.0), tokens, tokens**2]),
    ).with_columns(
        losses=np.full(count, loss if iteration != 90 else np.nan),
        has_loss=everybody,
        gradient_norms=1.0 + 0.1 * rng.random(count) * (iteration > 200),
        has_gradient_norm=everybody,
        data_seconds=0.01 * frame.wall_seconds * (20.0 if iteration in (60, 62, 64) else 1.0),
    )
    if iteration == 40:
        return frame.with_columns(planned=everybody)
    if iteration == 50:
        return frame.with_columns(compute_seconds=np.where(np.arange(count) == 3, 0.0, frame.compute_seconds))
    return frame.with_columns(incarnations=np.where(np.arange(count) == 1, 1, 0)) if iteration >= 170 else frame


def story(seed: int) -> list[Observation]:
    job = SyntheticJob(
        places=cube(), noise=student(0.01, 4.0), throughput=slow_from(NUM_RANKS - 1, 110, 0.7, 150), seed=seed
    )
    rng = np.random.default_rng(seed)
    frames = [told(frame, rng) for frame in job.frames(0, NUM_FRAMES)]
    event = ProcessEvent(
        at_unix_seconds=frames[130].at_unix_seconds, kind=ProcessEventKind.STARTED, rank=0, incarnation=0
    )
    liveness = LivenessObservation(job_id="job", sequence=0, at_unix_seconds=event.at_unix_seconds, event=event)
    reshaped = SyntheticJob(places=cube(), quotas=(5, 3), seed=seed + 1, epoch=1).frames(NUM_FRAMES, NUM_FRAMES + 40)
    observations: list[Observation] = [*frames[:130], liveness, frames[130], *frames[130:], *reshaped]
    numbered = [replace(one, sequence=number) for number, one in enumerate(observations)]
    return [*numbered[:131], numbered[130], *numbered[131:]]  # one of them comes twice


STORIES = [story(seed) for seed in range(3)]


def run(observations: list[Observation], cuts: Sequence[int], *, restored_at: int = -1) -> tuple[list[str], Any]:
    """What a detector finds in blocks that end at ``cuts``, and its state; begun anew from a snapshot at one."""
    detector, found, start = JobDetector("job"), [], 0
    for number, stop in enumerate([*sorted(set(cuts)), len(observations)]):
        found += [repr(one) for one in detector.observe_all(observations[start:stop])]
        if number == restored_at:
            state = state_to_bytes(detector.to_state())
            detector = JobDetector("job")
            detector.restore(state_from_bytes(state))
        start = stop
    return found, state_to_bytes(detector.to_state())


ONE_BY_ONE = [run(observations, range(len(observations))) for observations in STORIES]


@settings(max_examples=12, deadline=None)
@example(which=1, cuts=[1, 91], restored_at=1)  # restored between the first losses that differed and the next ones
@given(st.integers(0, len(STORIES) - 1), st.lists(st.integers(1, NUM_FRAMES + 40), max_size=40), st.integers(-1, 10))
def test_any_split_into_blocks_finds_the_same_and_leaves_the_same(
    which: int, cuts: list[int], restored_at: int
) -> None:
    assert run(STORIES[which], cuts, restored_at=restored_at) == ONE_BY_ONE[which]


def test_the_stories_have_something_to_find() -> None:
    found = [
        finding
        for observations in STORIES
        for finding in JobDetector("job").observe_all(observations)
        if isinstance(finding, Verdict)
    ]
    assert {"compute_slow", "recovered", "not_finite"} <= {verdict.kind.value for verdict in found}


@pytest.mark.parametrize("num_ranks", [1, 2, 32])
def test_small_and_large_jobs_alike(num_ranks: int) -> None:
    replicas = min(num_ranks, 4)
    places = cube(1, num_ranks // replicas, replicas)
    frames: list[Observation] = list(SyntheticJob(places=places, quotas=(4,) * replicas).frames(0, 120))
    assert run(frames, ()) == run(frames, range(len(frames)))
