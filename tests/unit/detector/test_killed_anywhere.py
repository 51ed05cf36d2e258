"""A detector that is killed anywhere and restored finds what one finds that ran through, and leaves the same."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.detector.domain.detector import JobDetector
from services.detector.domain.observation import (
    FrameObservation,
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
)
from services.detector.domain.state import state_from_bytes, state_to_bytes
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


def run(observations: Sequence[Observation], kills: Collection[int] = ()) -> tuple[list[str], bytes]:
    """What a detector finds, begun anew from a snapshot before each observation in ``kills``, and its last snapshot."""
    detector, found = JobDetector("job"), []
    for place, observation in enumerate(observations):
        if place in kills:
            state = state_to_bytes(detector.to_state())
            detector = JobDetector("job")
            detector.restore(state_from_bytes(state))
        found += [repr(one) for one in detector.observe(observation)]
    return found, state_to_bytes(detector.to_state())


RAN_THROUGH = [run(observations) for observations in STORIES]


@settings(max_examples=12, deadline=None)
@example(which=1, kills={91})  # between the first losses that differed and the next ones
@given(st.integers(0, len(STORIES) - 1), st.sets(st.integers(0, NUM_FRAMES + 40), max_size=40))
def test_killed_anywhere_it_finds_the_same_and_leaves_the_same_snapshot(which: int, kills: set[int]) -> None:
    assert run(STORIES[which], kills) == RAN_THROUGH[which]


def test_the_stories_have_something_to_find() -> None:
    found = "".join("".join(findings) for findings, _ in RAN_THROUGH)
    assert all(f"VerdictKind.{kind}" in found for kind in ("COMPUTE_SLOW", "RECOVERED", "NOT_FINITE"))
