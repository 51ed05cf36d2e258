"""What a profile says when devices change: iterations of now, prices of healthy devices."""

from dataclasses import replace

import numpy as np
import pytest

from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.expectation.profile.job_profile import JobProfile
from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import Finding, JobDetector
from tests.unit.detector.synthetic import SyntheticJob, VerdictKind, cube, slow_from

ONSET, RECOVERY = 60, 90
JOB = SyntheticJob(places=cube(), throughput=slow_from(5, ONSET, 0.5, RECOVERY))


def told(frame: FrameObservation) -> FrameObservation:
    """The frame with its micro-batches: four of a replica, as two ranks of each would name them."""
    named = [(4 * d + m, 100 + m, frame.iteration) for d in (0, 1) for m in range(4)]
    return replace(frame, micro_batches=np.array([*named, *named], dtype=np.float64))


def findings(detector: JobDetector, start: int, stop: int) -> list[Finding]:
    return [one for frame in JOB.frames(0, stop) if frame.iteration >= start for one in detector.observe(told(frame))]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_ran_before_devices_changed_is_in_no_profile_after_it(restarted: bool) -> None:
    detector = JobDetector("job")
    before = [one for one in findings(detector, 0, ONSET) if isinstance(one, Profile)][-1]
    if restarted:
        state, detector = dump(detector), JobDetector("job")
        load(detector, state)
    after = findings(detector, ONSET, RECOVERY + 20)
    for kind, first in ((VerdictKind.COMPUTE_SLOW, ONSET), (VerdictKind.RECOVERED, RECOVERY)):
        place = next(n for n, one in enumerate(after) if isinstance(one, Verdict) and one.kind == kind)
        profile = next(one for one in after[place:] if isinstance(one, Profile))
        assert min(one.iteration for one in profile.recent) >= first
        assert profile.recent[-1].tokens == (100, 101, 102, 103) * 2
        assert profile.seconds_per_flop == pytest.approx(before.seconds_per_flop, rel=0.03)


def test_who_begins_an_iteration_first_waits_for_the_others_and_that_is_no_transfer() -> None:
    early_seconds = 0.05
    second_stage = [rank for rank, place in enumerate(JOB.places) if place.stage == 1]

    def profile_of(early: list[int]) -> Profile:
        profile = JobProfile()
        for frame in JOB.frames(0, 16):
            walls = np.full(len(frame.ranks), frame.wall_seconds.max()) + early_seconds * np.isin(frame.ranks, early)
            one = replace(frame, wall_seconds=walls)
            everybody = np.ones(len(one), dtype=np.bool_)
            profile.observe(one, FrameLayout(one), usable=everybody, healthy=everybody)
        found = profile.profile("job", 15, ())
        assert found is not None
        return found

    together, apart = profile_of([]), profile_of(second_stage)
    assert apart.iteration_seconds == pytest.approx(together.iteration_seconds + early_seconds)
    assert apart.fixed_seconds == pytest.approx(together.fixed_seconds + early_seconds)
    assert apart.transfer_seconds == pytest.approx(together.transfer_seconds)
