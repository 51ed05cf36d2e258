"""Each kind of finding: told once, of the right ones, with facts and advice; silent about what is healthy."""

from functools import cache

import numpy as np
import pytest

from benchmarks.detection.aspects.kinds import WANTED, kind_trace, score_kind
from benchmarks.detection.traces.frames import frames_of
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.services.detector.domain.kinds.board import known_kinds
from evenkeel.simulator.job.afflictions import Affliction
from tests.unit.detector.synthetic import REPORT_ONLY, SyntheticJob, cube, slow_from, verdicts_of

SEEDS = range(2)


@pytest.mark.parametrize("what", [what for what in Affliction if WANTED[what]])
def test_what_ails_a_job_is_found_and_named(what: Affliction) -> None:
    scores = [score_kind(what, *kind_trace(what, index)) for index in SEEDS]
    assert all(score.found for score in scores)
    assert [score.false_kinds for score in scores] == [()] * len(scores)


@pytest.mark.parametrize("what", [Affliction.NONE, Affliction.PLANNED_PAUSES])
def test_nothing_is_said_of_healthy_runs_and_of_planned_pauses(what: Affliction) -> None:
    assert [score_kind(what, *kind_trace(what, index)).false_kinds for index in SEEDS] == [()] * len(SEEDS)


@pytest.mark.parametrize("index", [42, 46, 57])
def test_a_rank_that_pauses_by_the_clock_is_told_as_that_alone(index: int) -> None:
    # Chance makes an iteration long beside these pauses: of the whole job in 42 and 57, of the rank in 46.
    score = score_kind(Affliction.RANK_PAUSES, *kind_trace(Affliction.RANK_PAUSES, index))
    assert score.found
    assert score.false_kinds == ()


def test_every_report_says_what_to_check_and_what_to_do() -> None:
    seen = set()
    for what in (Affliction.STAGE_IMBALANCE, Affliction.INPUT_STALL, Affliction.CORRUPTION):
        trace, _ = kind_trace(what, 0)
        for verdict in reports(trace.name, list(frames_of(trace))):
            seen.add(verdict.kind)
            assert verdict.kind in REPORT_ONLY
            assert verdict.evidence[-1].name == "advice"
            assert verdict.evidence[-1].text
            assert len(verdict.evidence) >= 2
            assert 0 < verdict.confidence <= 1
            assert verdict.first_iteration <= verdict.decided_iteration
    assert seen == {VerdictKind.STAGE_IMBALANCE, VerdictKind.INPUT_STALL, VerdictKind.SUSPECTED_CORRUPTION}


def test_kinds_are_found_by_having_a_file() -> None:
    names = [kind.name for kind in known_kinds()]
    assert names == sorted(names)
    assert {"intermittent", "jitter", "periodic_pause", "stage_imbalance", "suspected_corruption"} <= set(names)


def test_a_device_that_comes_and_goes_is_one_incident_with_a_duty_cycle() -> None:
    def throughput(rank: int, iteration: int) -> float:
        return 0.7 if rank == 2 and 100 <= iteration < 200 and iteration % 20 < 10 else 1.0

    job = SyntheticJob(places=cube(), throughput=throughput, seed=3)
    found = verdicts_of(JobDetector("job"), job.frames(0, 320))
    assert [verdict.kind.value for verdict in found] == ["compute_slow", "recovered", "compute_slow", "recovered"]
    duty = next(fact for fact in found[2].evidence if fact.name == "duty cycle")
    assert duty.value == pytest.approx(0.5, abs=0.15)
    assert 0.7 < found[2].throughput < 0.95
    assert found[2].first_iteration == pytest.approx(120, abs=2)
    assert "in 2 spells (100-109, now from 120 on)" in duty.text
    assert found[3].decided_iteration > 240


@pytest.mark.parametrize("restored_at", [None, 140])
def test_a_device_that_came_and_went_and_stays_slow_is_told_as_slow_as_it_is(restored_at: int | None) -> None:
    def throughput(rank: int, iteration: int) -> float:
        return (
            0.6 if rank == 2 and (136 <= iteration < 300 or iteration in {*range(100, 105), *range(118, 123)}) else 1.0
        )

    job = SyntheticJob(places=cube(), throughput=throughput, seed=3)
    detector, found = JobDetector("job"), []
    for frame in job.frames(0, 340):
        found += [one for one in detector.observe(frame) if isinstance(one, Verdict)]
        if frame.iteration == restored_at:
            state = dump(detector)
            detector = JobDetector("job")
            load(detector, state)
    told = [verdict for verdict in found if verdict.first_iteration >= 134]
    assert [verdict.kind.value for verdict in told] == ["compute_slow", "recovered"]
    assert told[0].throughput == pytest.approx(0.6, abs=0.02)
    assert told[0].decided_iteration <= 136 + 13
    assert told[0].evidence[0].name == "lasting"
    assert told[1].decided_iteration <= 300 + 8
    assert len({verdict.verdict_id for verdict in found}) == len(found)


def test_nothing_more_is_said_of_a_device_that_comes_and_goes_once_its_process_has_ended() -> None:
    def throughput(rank: int, iteration: int) -> float:
        return 0.6 if rank == 2 and iteration in {*range(100, 105), *range(118, 123), *range(136, 140)} else 1.0

    detector = JobDetector("job")
    before = verdicts_of(detector, SyntheticJob(places=cube(), throughput=throughput, seed=3).frames(0, 140))
    assert [culprit.rank for verdict in before for culprit in verdict.culprits] == [2] * len(before)
    again = SyntheticJob(places=cube(), incarnations={2: 1}, seed=4, epoch=1)
    assert verdicts_of(detector, again.frames(140, 300)) == []


def test_a_slow_device_does_not_make_its_stage_look_heavy() -> None:
    job = SyntheticJob(places=cube(), throughput=slow_from(3, 40, 0.6), seed=4)
    kinds = {verdict.kind for verdict in reports("job", list(job.frames(0, 150)))}
    assert kinds == {VerdictKind.COMPUTE_SLOW}


RESTARTS = (90, 171)


@cache
def ran_through(what: Affliction) -> tuple[list[FrameObservation], list[Verdict], dict[int, tuple[int, bytes]]]:
    """Frames of a trace, what is found, and before each frame of ``RESTARTS`` how much that was and the snapshot."""
    trace, _ = kind_trace(what, 1)
    frames, detector, found, states = list(frames_of(trace)), JobDetector(trace.name), list[Verdict](), {}
    for place, frame in enumerate(frames):
        if place in RESTARTS:
            states[place] = len(found), dump(detector)
        found += verdicts_of(detector, iter([frame]), everything=True)
    return frames, found, states


@pytest.mark.parametrize("what", [Affliction.INTERMITTENT, Affliction.RANK_PAUSES, Affliction.CORRUPTION])
@pytest.mark.parametrize("killed_at", RESTARTS)
def test_a_restart_changes_nothing_about_what_the_kinds_say(what: Affliction, killed_at: int) -> None:
    frames, through, states = ran_through(what)
    num_before, state = states[killed_at]
    detector = JobDetector(frames[0].job_id)
    load(detector, state)
    assert verdicts_of(detector, iter(frames[killed_at:]), everything=True) == through[num_before:]


def test_ranks_that_keep_their_own_distance_from_the_median_are_not_corrupt() -> None:
    job = SyntheticJob(places=cube(), seed=5)
    own = 1 + 0.1 * np.arange(8)
    frames = list(job.frames(0, 120))
    for frame in frames:
        frame.gradient_norms[:] = own * np.exp(0.02 * np.random.default_rng(frame.iteration).standard_normal(8))
        frame.has_gradient_norm[:] = True
    assert reports("job", frames) == []


def reports(job_id: str, frames: list) -> list[Verdict]:
    return verdicts_of(JobDetector(job_id), iter(frames), everything=True)
