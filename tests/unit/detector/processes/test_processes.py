"""Deaths and replacements: each once, and nobody for a lost connection alone."""

from dataclasses import replace

import pytest

from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import (
    LivenessObservation,
    ProcessEvent,
    ProcessEventKind,
    RankProgress,
)
from evenkeel.services.detector.domain.job.job import JobDetector
from tests.unit.detector.synthetic import SyntheticJob, cube, verdicts_of


class Story:
    """Tells a detector what happens, a second at a time."""

    def __init__(self, *, num_frames: int = 5) -> None:
        self.detector = JobDetector("job")
        assert verdicts_of(self.detector, SyntheticJob(places=cube()).frames(0, num_frames)) == []
        self.sequence = 10_000
        self.now = 2_000.0
        self.profiles: list[Profile] = []

    def event(self, kind: ProcessEventKind, rank: int, incarnation: int = 0) -> list[tuple[VerdictKind, int, int]]:
        event = ProcessEvent(at_unix_seconds=self.now, kind=kind, rank=rank, incarnation=incarnation, detail="signal 9")
        return self._tell(event=event)

    def heard(self, rank: int, seconds_ago: float, incarnation: int = 0) -> list[tuple[VerdictKind, int, int]]:
        one = RankProgress(
            rank=rank,
            incarnation=incarnation,
            iteration=5,
            epoch=0,
            operation="parked",
            seconds_since_heard=seconds_ago,
            seconds_since_moved=seconds_ago,
        )
        return self._tell(progress=(one,))

    def _tell(self, **what: object) -> list[tuple[VerdictKind, int, int]]:
        self.sequence += 1
        self.now += 0.1
        found = self.detector.observe(
            LivenessObservation(job_id="job", sequence=self.sequence, at_unix_seconds=self.now, **what)  # type: ignore[arg-type]
        )
        self.profiles += [one for one in found if isinstance(one, Profile)]
        return [(v.kind, v.culprits[0].rank, v.culprits[0].incarnation) for v in found if isinstance(v, Verdict)]


DIED, BROKEN, LOST = ProcessEventKind.DIED, ProcessEventKind.STREAM_BROKEN, ProcessEventKind.CONNECTION_LOST
STARTED, FINISHED = ProcessEventKind.STARTED, ProcessEventKind.FINISHED


def test_a_death_seen_by_the_launcher_is_reported_at_once_and_once() -> None:
    story = Story()
    assert story.event(DIED, 3) == [(VerdictKind.FAIL_STOP, 3, 0)]
    assert story.event(DIED, 3) == []
    assert story.event(BROKEN, 3) == []
    assert story.event(LOST, 2) == []


def test_the_culprit_of_a_death_carries_its_node_and_device() -> None:
    detector = Story().detector
    event = ProcessEvent(at_unix_seconds=2_000.0, kind=DIED, rank=5, incarnation=0)
    found = detector.observe(LivenessObservation(job_id="job", sequence=99, at_unix_seconds=2_000.0, event=event))
    assert isinstance(found[0], Verdict)
    assert (found[0].culprits[0].node, found[0].culprits[0].device) == ("node-1", "device-1")
    assert found[0].throughput == 0.0


@pytest.mark.parametrize("broken_first", [True, False])
def test_a_broken_stream_and_a_peers_lost_connection_make_a_death(broken_first: bool) -> None:
    story = Story()
    kinds = [(BROKEN, 3), (LOST, 2)] if broken_first else [(LOST, 2), (BROKEN, 3)]
    assert story.event(*kinds[0]) == []
    assert story.event(*kinds[1]) == [(VerdictKind.FAIL_STOP, 3, 0)]


def test_lost_connections_alone_accuse_nobody() -> None:
    story = Story()
    assert [story.event(LOST, rank) for rank in range(8)] == [[]] * 8


def test_a_broken_stream_and_silence_make_a_death() -> None:
    story = Story()
    assert story.event(BROKEN, 3) == []
    assert story.heard(3, seconds_ago=0.3) == []
    assert story.heard(3, seconds_ago=0.8) == [(VerdictKind.FAIL_STOP, 3, 0)]


def test_a_broken_stream_of_a_rank_that_goes_on_talking_is_no_death() -> None:
    story = Story()
    assert story.event(BROKEN, 3) == []
    story.now += 10
    assert story.heard(3, seconds_ago=0.0) == []
    assert story.event(LOST, 2) == []


def test_a_planned_end_is_no_death_whichever_news_comes_first() -> None:
    story = Story()
    for rank in range(8):
        assert story.event(BROKEN, rank) == []
    for rank in range(8):
        assert story.event(FINISHED, rank) == []
        assert story.heard(rank, seconds_ago=5.0) == []
    assert story.detector.finished


@pytest.mark.parametrize("num_frames", [0, 5])
def test_the_end_of_the_last_process_is_told_once_with_what_was_known_of_the_job(num_frames: int) -> None:
    story = Story(num_frames=num_frames)
    for rank in range(8):
        story.event(STARTED, rank)
        assert story.profiles == []
    for rank in range(8):
        story.event(FINISHED, rank)
    (last,) = story.profiles
    assert (last.ended, last.iteration, last.iteration_seconds > 0.0) == (True, num_frames - 1, num_frames > 0)
    story.event(FINISHED, 3)
    assert len(story.profiles) == 1
    frames = SyntheticJob(places=cube()).frames(num_frames, num_frames + 12)
    late = [
        found for frame in frames for found in story.detector.observe(replace(frame, sequence=frame.iteration + 20_000))
    ]
    assert late
    assert all(isinstance(one, Profile) and one.ended for one in late)


def test_a_replacement_is_reported_once() -> None:
    story = Story()
    story.event(DIED, 3)
    assert story.event(STARTED, 3, incarnation=1) == [(VerdictKind.REJOINED, 3, 1)]
    assert story.event(STARTED, 3, incarnation=1) == []
    assert story.event(DIED, 3, incarnation=0) == []
    assert story.event(DIED, 3, incarnation=1) == [(VerdictKind.FAIL_STOP, 3, 1)]


def test_a_replacement_that_is_heard_of_first_tells_of_the_death_too() -> None:
    story = Story()
    assert story.event(STARTED, 3, incarnation=1) == [(VerdictKind.FAIL_STOP, 3, 0), (VerdictKind.REJOINED, 3, 1)]
    assert story.event(DIED, 3, incarnation=0) == []


@pytest.mark.parametrize("its_death_is_known", [True, False])
@pytest.mark.parametrize("first", ["progress", "stream"])
def test_a_replacement_that_speaks_before_word_of_its_start_comes_is_reported_all_the_same(
    first: str, its_death_is_known: bool
) -> None:
    story = Story()
    dead = story.event(DIED, 3) if its_death_is_known else []
    assert (story.heard(3, 0.0, incarnation=1) if first == "progress" else story.event(BROKEN, 3, incarnation=1)) == []
    dead += story.event(STARTED, 3, incarnation=1)
    assert dead == [(VerdictKind.FAIL_STOP, 3, 0), (VerdictKind.REJOINED, 3, 1)]
    assert story.event(STARTED, 3, incarnation=1) == []
    assert story.event(DIED, 3, incarnation=1) == [(VerdictKind.FAIL_STOP, 3, 1)]


@pytest.mark.parametrize(("lived_on_seconds", "is_told"), [(0.5, False), (60.0, True)])
def test_the_end_of_one_that_was_presumed_dead_is_told_if_it_had_lived_on(
    lived_on_seconds: float, is_told: bool
) -> None:
    story = Story()
    story.event(BROKEN, 3)
    (presumed,) = story.event(LOST, 2)
    assert presumed == (VerdictKind.FAIL_STOP, 3, 0)
    story.now += lived_on_seconds
    assert story.event(DIED, 3) == [presumed] * is_told
    assert story.event(DIED, 3) == []


def test_word_of_a_start_that_comes_after_the_end_is_no_news() -> None:
    story = Story()
    story.event(DIED, 3)
    story.event(DIED, 3, incarnation=1)
    assert story.event(STARTED, 3, incarnation=1) == []


def test_a_first_start_is_no_news() -> None:
    story = Story()
    assert story.event(STARTED, 0) == []


def test_a_replacement_and_its_death_carry_the_place_that_its_own_start_told() -> None:
    story = Story()
    story.event(DIED, 3)
    at = {"at_unix_seconds": 2_000.5, "rank": 3, "incarnation": 1}
    events = [
        ProcessEvent(kind=STARTED, node="node-9", device="device-7", **at),
        ProcessEvent(kind=DIED, node="node-9", **at),
    ]
    found = []
    for number, event in enumerate(events):
        if number:
            restarted = JobDetector("job")
            load(restarted, dump(story.detector))
            story.detector = restarted
        observation = LivenessObservation(
            job_id="job", sequence=20_000 + number, at_unix_seconds=2_001.0 + number, event=event
        )
        found += story.detector.observe(observation)
    assert [one.kind for one in found if isinstance(one, Verdict)] == [VerdictKind.REJOINED, VerdictKind.FAIL_STOP]
    for one in found:
        assert isinstance(one, Verdict)
        assert (one.culprits[0].node, one.culprits[0].device) == ("node-9", "device-7")
