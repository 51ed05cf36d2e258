"""Ranks that tell what became of their threads' time: what they do convicts them, what their host does not."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import JobDetector
from tests.unit.detector.synthetic import Place, SyntheticJob, gaussian, slow_from

BEGIN = 120


def frames_of(
    *,
    num_ranks: int = 2,
    work: float = 1.0,
    blocked: float = 0.0,
    queued: float = 0.0,
    throttled: float = 0.0,
    stop: int = 200,
    seed: int = 0,
) -> Iterator[FrameObservation]:
    """A job on shared cores: half of the wall is other people's work; from BEGIN on rank 1 has the fault.

    Args:
        num_ranks: Replicas of one rank.
        work: Times the usual work of the slow rank.
        blocked: Its further blocked seconds, in parts of an iteration's work.
        queued: The same for seconds that it waits for a core.
        throttled: Part of all that it waits for a core in which a quota throttles it, by its control group.
        stop: Iterations.
        seed: Of all noise.
    """
    job = SyntheticJob(
        [Place(replica=rank, stage=0, shard=0) for rank in range(num_ranks)],
        noise=gaussian(0.04),
        throughput=slow_from(1, BEGIN, 1 / work),
        quotas=(4,) * num_ranks,
        seed=seed,
    )
    rng, held_seconds = np.random.default_rng(seed), 0.0
    for frame in job.frames(0, stop):
        usual = float(np.median(frame.compute_seconds))
        sick = (frame.ranks == 1) & (frame.iteration >= BEGIN)
        others = usual * rng.gamma(2.0, 0.5, num_ranks) + np.where(sick, queued * usual, 0.0)
        held_seconds += throttled * float(others[sick].sum())
        asleep = np.abs(rng.normal(0.0, 1e-3, num_ranks)) + np.where(sick, blocked * usual, 0.0)
        yield replace(
            frame,
            readings=np.array([[1.0, held_seconds]]),
            core_seconds=frame.compute_seconds,
            queued_seconds=others,
            compute_seconds=frame.compute_seconds + others + asleep,
            wall_seconds=frame.compute_seconds + others + asleep,
        )


def slow_verdicts(frames: Iterator[FrameObservation], detector: JobDetector | None = None) -> list[Verdict]:
    detector = detector or JobDetector("job")
    found = [one for frame in frames for one in detector.observe(frame)]
    kinds = VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED
    return [one for one in found if isinstance(one, Verdict) and one.kind in kinds]


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("fault", "clock", "throughput"),
    [
        ({"work": 1.5}, "work", 1 / 1.5),
        ({"work": 1.25}, "work", 0.8),
        ({"blocked": 0.5}, "blocked", 1 / 1.5),
        ({"queued": 4.0, "throttled": 1.0}, "waiting for a core", 0.17),
    ],
)
def test_what_a_rank_does_convicts_it(num_ranks: int, fault: dict[str, float], clock: str, throughput: float) -> None:
    found = slow_verdicts(frames_of(num_ranks=num_ranks, **fault))  # type: ignore[arg-type]

    first = found[0]
    assert [culprit.rank for one in found for culprit in one.culprits] == [1] * len(found)
    assert BEGIN <= first.decided_iteration <= BEGIN + 20
    assert first.first_iteration >= BEGIN - 3
    assert found[-1].throughput == pytest.approx(throughput, abs=0.1)
    of_clocks = {one.name.removesuffix(" against expectation and peers") for one in first.evidence}
    assert clock in of_clocks or "wall" in of_clocks
    assert ({"work", "blocked", "waiting for a core"} - {clock}).isdisjoint(of_clocks)


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_others_use_convicts_no_device(seed: int) -> None:
    assert slow_verdicts(frames_of(queued=3.0, stop=400, seed=seed)) == []


def under_a_quota(waits: Floats, seed: int, *, until: int) -> Iterator[FrameObservation]:
    """From BEGIN on rank 1 waits for a core so many times its work in each iteration; throttled until one of them."""
    for frame, wait in zip(frames_of(stop=len(waits), seed=seed), waits, strict=True):
        assert frame.core_seconds is not None
        sick = (frame.ranks == 1) & (frame.iteration >= BEGIN)
        queued = np.where(sick, wait * frame.core_seconds, 0.0)
        counted = np.array([[1.0, 1e3 * min(frame.iteration, until)]]) if sick.any() else None
        yield replace(frame, queued_seconds=queued, compute_seconds=frame.core_seconds + queued, readings=counted)


@pytest.mark.parametrize("seed", range(4))
def test_a_quota_that_holds_some_iterations_long_and_others_hardly_is_never_called_over(seed: int) -> None:
    found = slow_verdicts(under_a_quota(np.random.default_rng(seed).choice([0.1, 1.8], 1000), seed, until=1000))

    assert [one.kind for one in found] == [VerdictKind.COMPUTE_SLOW] * len(found)
    assert len(found) <= 7
    assert found[-1].throughput == pytest.approx(1 / 1.95, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_quota_that_is_lifted_is_called_over_and_not_a_small_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    waits = np.r_[rng.choice([0.1, 1.8], 320), 0.1 * rng.gamma(1.0, 1.0, 80)]

    found = slow_verdicts(under_a_quota(waits, seed, until=320))

    assert found[-1].kind is VerdictKind.RECOVERED
    assert found[-1].decided_iteration <= 360
    assert all(one.throughput < 0.75 for one in found[:-1])


def test_a_device_that_recovers_is_told_to() -> None:
    sick, well = list(frames_of(num_ranks=4, work=1.5)), list(frames_of(num_ranks=4, stop=BEGIN, seed=1))
    again = [replace(one, iteration=one.iteration + 200, sequence=one.sequence + 200) for one in well]

    found = slow_verdicts(iter([*sick, *again]))

    assert found[-1].kind is VerdictKind.RECOVERED
    assert found[-1].decided_iteration <= 240


def test_another_process_on_a_slow_device_is_judged_by_itself() -> None:
    detector, frames = JobDetector("job"), list(frames_of(num_ranks=4, work=1.5, stop=300))
    again = [replace(one, incarnations=np.where(one.ranks == 1, 1, 0)) for one in frames[200:]]

    found = slow_verdicts(iter([*frames[:200], *again]), detector)

    assert found[0].culprits[0].incarnation == 0
    later = [one for one in found if one.decided_iteration >= 200]
    assert later
    assert {(one.culprits[0].rank, one.culprits[0].incarnation) for one in later} == {(1, 1)}


def test_a_rank_that_joins_gets_a_column_of_its_own() -> None:
    frames = list(frames_of(num_ranks=4, work=1.5))
    few = [_without_last(one) for one in frames[:40]]

    found = slow_verdicts(iter([*few, *frames[40:]]))

    assert found
    assert {culprit.rank for one in found for culprit in one.culprits} == {1}


@pytest.mark.parametrize("killed_at", [2, 50, BEGIN + 2, 150])
def test_killed_anywhere_it_finds_the_same(killed_at: int) -> None:
    frames = list(frames_of(num_ranks=4, work=1.5))
    whole = JobDetector("job")
    expected = slow_verdicts(iter(frames), whole)
    first, second = JobDetector("job"), JobDetector("job")
    found = slow_verdicts(iter(frames[:killed_at]), first)
    load(second, dump(first))

    found += slow_verdicts(iter(frames[killed_at:]), second)

    assert found == expected
    assert dump(second) == dump(whole)


def _without_last(frame: FrameObservation) -> FrameObservation:
    count = len(frame) - 1
    columns = {
        name: value[:count]
        for name in FrameObservation.__slots__
        if isinstance(value := getattr(frame, name), np.ndarray) and len(value) == len(frame)
    }
    return replace(frame, nodes=frame.nodes[:count], devices=frame.devices[:count], **columns)  # type: ignore[arg-type]
