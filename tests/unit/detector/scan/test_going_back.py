"""A job that does iterations again, as after a restart from a checkpoint: nobody trips over numbers that go back."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.services.detector.adapters.finding_codec import record_of
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import Finding, JobDetector
from tests.unit.detector.synthetic import SyntheticJob, Throughput, cube, slow_from, student

PERIOD = 9


def pausing(rank: int, iteration: int) -> float:
    """Rank 1 pauses by the clock, and rank 2 is slow on and off."""
    if rank == 1 and iteration % PERIOD == 0:
        return 0.6
    return 0.7 if rank == 2 and iteration // 30 % 2 else 1.0


def run_of(
    parts: Sequence[tuple[int, int]], throughput: Throughput = pausing, *, new_processes: bool = True
) -> list[FrameObservation]:
    """Frames of the iterations of each part, one part after the other."""
    job = SyntheticJob(places=cube(), noise=student(0.01, 3.0), throughput=throughput)
    frames: list[FrameObservation] = []
    for number, (start, stop) in enumerate(parts):
        for frame in job.frames(start, stop):
            processes = np.full(len(frame), number if new_processes else 0)
            frames.append(replace(frame, sequence=len(frames), incarnations=processes))
    return frames


def found_in(frames: Sequence[FrameObservation], *, at_once: int = 1) -> list[tuple[int, Finding]]:
    """What is found, and in which iteration at the latest; the detector is begun anew from a snapshot now and then."""
    detector, found = JobDetector("job"), []
    for start in range(0, len(frames), at_once):
        block = frames[start : start + at_once]
        found += [(block[-1].iteration, one) for each in block for one in detector.observe(each)]
        if start % 29 == 0:
            state = dump(detector)
            detector = JobDetector("job")
            load(detector, state)
    return found


def told(found: Sequence[tuple[int, Finding]]) -> list[bytes]:
    return [record_of(one).value or b"" for _, one in found]


PARTS = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 150)), min_size=2, max_size=4)


@settings(max_examples=12, deadline=None)
@given(PARTS, st.booleans())
def test_whatever_is_done_again_findings_make_sense(parts: list[tuple[int, int]], new_processes: bool) -> None:
    frames = run_of([(start, start + length) for start, length in parts], new_processes=new_processes)
    found = found_in(frames)
    assert all(told(found))
    for _, finding in found:
        if isinstance(finding, Verdict):
            assert 0 <= finding.first_iteration <= finding.decided_iteration
            assert 0.0 < finding.throughput <= 1.5
    assert told(found_in(frames, at_once=16)) == told(found)


def test_pauses_of_the_run_before_are_no_clock_of_this_one() -> None:
    found = found_in(run_of([(0, 120), (0, 90)]))
    pauses = [one for _, one in found if isinstance(one, Verdict) and one.kind is VerdictKind.PERIODIC_PAUSE]
    assert pauses
    assert all(f"{PERIOD} iterations" in text_of(one) for one in pauses)


def text_of(verdict: Verdict) -> str:
    return " ".join(f"{one.value:g} {one.unit}" for one in verdict.evidence if one.name == "period")


@pytest.mark.parametrize("new_processes", [True, False])
def test_a_device_that_gets_slow_after_a_restart_is_found_and_asked_as_soon_as_any_other(new_processes: bool) -> None:
    slow = slow_from(5, 60, 0.9, 100)

    def late(rank: int, iteration: int) -> float:
        return slow(rank, iteration) if iteration < 100 else slow_from(3, 350, 0.9, 400)(rank, iteration)

    before = found_in(run_of([(100, 420)], late))
    after = found_in(run_of([(100, 420), (0, 100)], late, new_processes=new_processes))
    assert any(isinstance(one, Suspicion) for _, one in before)
    news = [one for _, one in after[len(before) :]]
    slow_ones = [one for one in news if isinstance(one, Verdict) and one.kind is VerdictKind.COMPUTE_SLOW]
    assert [culprit.rank for one in slow_ones for culprit in one.culprits][:1] == [5]
    assert 55 <= slow_ones[0].first_iteration <= slow_ones[0].decided_iteration <= 70
    assert any(isinstance(one, Suspicion) and one.rank == 5 for one in news)
