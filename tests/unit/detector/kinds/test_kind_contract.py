"""Every kind, found by being a file, sees every frame of a job once and in order; no kill changes a bit."""

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.frames.observation import (
    FrameObservation,
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
)
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.services.detector.domain.kinds import board as kind_board
from evenkeel.services.detector.domain.kinds.board import known_kinds
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from tests.unit.detector.synthetic import SyntheticJob, cube, slow_from, student

NUM_RANKS, NUM_FRAMES = 8, 1000


def told(frame: FrameObservation, rng: np.random.Generator) -> FrameObservation:
    """A frame as ranks tell it: with all that kinds look at, and often enough not a plain one."""
    count, iteration = len(frame), frame.iteration
    everybody, tokens = np.ones(count, dtype=np.bool_), rng.integers(1000, 4000, 4).astype(np.float64)
    loss = 3.0 / (1.0 + 0.01 * iteration) * (1.0 + 0.01 * rng.standard_normal())
    stalled = 200 <= iteration < 220 or 700 <= iteration < 705
    frame = replace(
        frame,
        micro_batches=np.column_stack([np.arange(4.0), tokens, tokens**2]),
        losses=np.where((np.arange(count) == 5) & (300 <= iteration < 304), 1.5, 1.0) * loss,
        has_loss=everybody,
        gradient_norms=1.0 + 0.1 * rng.random(count) * (iteration > 500),
        has_gradient_norm=everybody,
        data_seconds=frame.wall_seconds * (0.2 if stalled else 0.01),
        wall_seconds=frame.wall_seconds * (1.5 if iteration % 25 == 0 else 1.0),
        planned=everybody & (iteration % 97 == 40),
        incarnations=np.where(np.arange(count) == 1, iteration >= 450, 0),
    )
    match iteration % 89:
        case 50:  # one measured nothing
            return replace(frame, compute_seconds=np.where(np.arange(count) == 3, 0.0, frame.compute_seconds))
        case 51:  # nobody did
            return replace(frame, compute_seconds=np.zeros(count))
        case 52:  # some are missing
            return replace(without(frame, 6), missing_ranks=(6, 7))
        case _:
            return frame


def without(frame: FrameObservation, first: int) -> FrameObservation:
    """The entries of a frame before one."""
    columns = {each.name: getattr(frame, each.name) for each in fields(frame)}
    told = {name: column[:first] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return replace(frame, nodes=frame.nodes[:first], devices=frame.devices[:first], **{**told, "micro_batches": None})


def story(seed: int) -> list[FrameObservation]:
    """A job with a sick device, one that comes and goes, a reshape, and all that is told above."""

    def throughput(rank: int, iteration: int) -> float:
        comes_and_goes = rank == 2 and iteration in {*range(560, 565), *range(578, 583), *range(596, 600)}
        return 0.6 if comes_and_goes else slow_from(NUM_RANKS - 1, 110, 0.7, 150)(rank, iteration)

    before = SyntheticJob(places=cube(), noise=student(0.01, 4.0), throughput=throughput, seed=seed)
    after = SyntheticJob(places=cube(), quotas=(5, 3), noise=student(0.01, 4.0), seed=seed, epoch=1)
    rng = np.random.default_rng(seed)
    frames = [*before.frames(0, 650), *after.frames(650, NUM_FRAMES)]
    return [replace(told(frame, rng), sequence=number) for number, frame in enumerate(frames)]


STORY = story(0)


def counting(kind: type[KindWatch], seen: list[int]) -> type[KindWatch]:
    """The kind, which notes the iteration of each frame that it is shown."""

    def observe(self: KindWatch, look: Look) -> list[KindFinding]:
        seen.append(look.frame.iteration)
        return kind.observe(self, look)

    return type(kind.__name__, (kind,), {"observe": observe})


def test_each_kind_sees_every_frame_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[int]] = {kind.name: [] for kind in known_kinds()}
    kinds = [counting(kind, seen[kind.name]) for kind in known_kinds()]
    monkeypatch.setattr(kind_board, "known_kinds", lambda: kinds)
    detector = JobDetector("job")
    for frame in STORY:
        detector.observe(frame)
    assert seen == {name: list(range(NUM_FRAMES)) for name in seen}


def observed(seed: int) -> list[Observation]:
    """The same with word of a process in between, and an observation that comes twice."""
    frames = story(seed)
    event = ProcessEvent(
        at_unix_seconds=frames[130].at_unix_seconds, kind=ProcessEventKind.STARTED, rank=0, incarnation=0
    )
    liveness = LivenessObservation(job_id="job", sequence=0, at_unix_seconds=event.at_unix_seconds, event=event)
    every: list[Observation] = [*frames[:130], liveness, *frames[130:]]
    numbered = [replace(one, sequence=number) for number, one in enumerate(every)]
    return [*numbered[:131], numbered[130], *numbered[131:]]


STORIES = [observed(seed) for seed in range(2)]


def run(observations: Sequence[Observation], kills: Collection[int] = ()) -> tuple[list[str], bytes]:
    """What a detector finds, begun anew from a snapshot before each observation in ``kills``, and its last snapshot."""
    detector, found = JobDetector("job"), []
    for place, observation in enumerate(observations):
        if place in kills:
            state = dump(detector)
            detector = JobDetector("job")
            load(detector, state)
        found += [repr(one) for one in detector.observe(observation)]
    return found, dump(detector)


@cache
def ran_through(which: int) -> tuple[list[str], bytes]:
    return run(STORIES[which])


# Both places around the word of a process and the observation that comes twice are among them.
@pytest.mark.parametrize(("which", "kills"), [(0, range(2, NUM_FRAMES, 3)), (1, range(4, NUM_FRAMES, 7))])
def test_killed_again_and_again_a_job_finds_the_same_and_leaves_the_same_snapshot(which: int, kills: range) -> None:
    assert run(STORIES[which], kills) == ran_through(which)


def test_the_stories_have_something_to_find() -> None:
    found = "".join(finding for which in range(len(STORIES)) for finding in ran_through(which)[0])
    kinds = ("COMPUTE_SLOW", "RECOVERED", "INPUT_STALL", "PERIODIC_PAUSE", "SUSPECTED_CORRUPTION")
    assert [kind for kind in kinds if f"VerdictKind.{kind}" not in found] == []
    assert "duty cycle" in found
