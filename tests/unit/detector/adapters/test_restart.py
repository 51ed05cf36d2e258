"""A detector that is killed anywhere and restored says what one that ran through says."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.frames.observation import (
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
)
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.services.detector.domain.job.job import Finding, JobDetector
from tests.unit.detector.synthetic import SyntheticJob, cube


def story() -> list[Observation]:
    def throughput(rank: int, iteration: int) -> float:
        return 0.6 if rank == 2 and 60 <= iteration < 90 else 1.0

    probe = ProbeReport(
        ranks=(2,), incarnations=(0,), peers=(0,), size=64, seconds=0.01, peer_seconds=0.006, iteration=65
    )
    probed = ProcessEvent(at_unix_seconds=1_066.5, kind=ProcessEventKind.PROBED, rank=2, incarnation=0, probe=probe)
    before = list(SyntheticJob(places=cube(), throughput=throughput, seed=30).frames(0, 120))
    event = ProcessEvent(at_unix_seconds=1_119.5, kind=ProcessEventKind.DIED, rank=7, incarnation=0)
    after = SyntheticJob(places=cube(), quotas=(5, 3), incarnations={7: 1}, seed=31, epoch=1).frames(120, 150)
    observations: list[Observation] = [
        *before[:67],
        LivenessObservation(job_id="job", sequence=0, at_unix_seconds=1_066.5, event=probed),
        *before[67:],
        LivenessObservation(job_id="job", sequence=0, at_unix_seconds=1_119.5, event=event),
        *after,
    ]
    return [replace(observation, sequence=number) for number, observation in enumerate(observations)]


STORY = story()


def run(observations: list[Observation], detector: JobDetector | None = None) -> list[Finding]:
    detector = detector or JobDetector("job")
    return [found for observation in observations for found in detector.observe(observation)]


THROUGH = run(STORY)


def test_the_story_has_something_to_find() -> None:
    kinds = [found.kind.value for found in THROUGH if isinstance(found, Verdict)]
    assert kinds == ["compute_slow", "compute_slow", "recovered", "fail_stop"]
    told_again = [found for found in THROUGH if isinstance(found, Verdict)][1]
    assert told_again.evidence[0].name == "probe against a peer", "a probe that came late is told with the verdict"
    asked = [found for found in THROUGH if isinstance(found, Suspicion)]
    assert 2 in {suspicion.rank for suspicion in asked}
    assert len(asked) < 5, "a job pays for few probes"


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_killed_anywhere_it_finds_the_same_and_nothing_twice(data: st.DataObject) -> None:
    """Each life reads on from its snapshot or before; what it finds beyond the snapshot is what one life finds."""
    detector, found, position = JobDetector("job"), list[Finding](), 0
    for _ in range(data.draw(st.integers(1, 4))):
        snapshot_at = data.draw(st.integers(position, len(STORY)))
        killed_at = data.draw(st.integers(snapshot_at, len(STORY)))
        found += run(STORY[position:snapshot_at], detector)
        stored = dump(detector)
        found += run(STORY[snapshot_at:killed_at], detector)
        detector = JobDetector("job")
        load(detector, stored)
        position = data.draw(st.integers(0, snapshot_at))
    found += run(STORY[position:], detector)
    unique = {_identity(one): one for one in found}
    assert list(unique.values()) == THROUGH


def test_observations_that_were_taken_before_find_nothing() -> None:
    detector = JobDetector("job")
    assert run(STORY, detector) == THROUGH
    assert run(STORY, detector) == []


def _identity(found: Finding) -> object:
    match found:
        case Verdict():
            return found.verdict_id
        case Profile():
            return "profile", found.epoch, found.iteration
        case Suspicion():
            return "suspicion", found.rank, found.iteration
