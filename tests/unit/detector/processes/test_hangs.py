"""Who did not arrive: the stuck one is named, those who wait for it are not."""

from dataclasses import replace

import pytest

from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import LivenessObservation, RankProgress
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.services.detector.domain.processes.hang import find_hangs
from tests.unit.detector.synthetic import SyntheticJob, cube, verdicts_of


def waiting(rank: int, seconds: float, *waiting_for: int, operation: str = "wait:tensor") -> RankProgress:
    return RankProgress(
        rank=rank,
        incarnation=0,
        iteration=30,
        epoch=0,
        operation=operation,
        waiting_for=waiting_for,
        seconds_since_heard=0.1,
        seconds_since_moved=seconds,
    )


def stuck(rank: int, seconds: float, operation: str = "forward") -> RankProgress:
    return waiting(rank, seconds, operation=operation)


def silent(rank: int, seconds: float, operation: str = "backward") -> RankProgress:
    return replace(waiting(rank, seconds, operation=operation), seconds_since_heard=seconds)


def ranks_of(*picture: RankProgress, iteration_seconds: float = 0.4) -> list[int]:
    return [hang.rank for hang in find_hangs(picture, iteration_seconds=iteration_seconds, epoch=0)]


def test_the_one_in_an_operation_of_its_own_is_the_culprit() -> None:
    assert ranks_of(waiting(0, 2, 1), stuck(1, 2), waiting(2, 2), waiting(3, 2)) == [1]


def test_a_stopped_process_is_the_culprit_although_it_says_nothing() -> None:
    assert ranks_of(waiting(0, 2), silent(1, 2), waiting(2, 2)) == [1]
    assert ranks_of(waiting(0, 2), silent(1, 2, "wait:tensor"), waiting(2, 2)) == [1]


def test_nobody_is_accused_before_the_job_has_stood_still_for_two_and_a_half_iterations() -> None:
    picture = (waiting(0, 2, 1), stuck(1, 2))
    assert ranks_of(*picture, iteration_seconds=0.79) == [1]
    assert ranks_of(*picture, iteration_seconds=0.81) == []
    assert ranks_of(waiting(0, 1.4, 1), stuck(1, 1.4), iteration_seconds=0.01) == []
    assert ranks_of(*picture, iteration_seconds=0.0) == []


@pytest.mark.parametrize("operation", ["checkpoint", "evaluation:loss", ""])
def test_planned_operations_are_no_hang(operation: str) -> None:
    assert ranks_of(waiting(0, 9), stuck(1, 9, operation)) == []
    assert ranks_of(waiting(0, 9), silent(1, 9, operation)) == []


@pytest.mark.parametrize("operation", ["parked", "standby"])
def test_a_rank_that_waits_to_be_told_what_to_do_has_stopped_when_nothing_is_heard_from_it(operation: str) -> None:
    others = waiting(0, 9), waiting(2, 9, operation="parked")
    assert ranks_of(*others, stuck(1, 9, operation)) == []
    assert ranks_of(*others, silent(1, 9, operation)) == [1]
    assert ranks_of(*others, silent(1, 4, operation)) == []
    assert ranks_of(waiting(2, 9, operation="parked"), silent(1, 9, operation)) == [1]
    assert ranks_of(silent(0, 9, "parked"), silent(1, 9, operation)) == [], "nothing is heard of anybody"


@pytest.mark.parametrize("operation", ["iteration", "between iterations"])
def test_a_loop_has_time_for_work_of_its_own_unless_it_is_silent(operation: str) -> None:
    picture = (waiting(0, 90), waiting(2, 90))
    assert ranks_of(*picture, stuck(1, 90, operation)) == []
    assert ranks_of(*picture, stuck(1, 121, operation)) == [1]
    assert ranks_of(*picture, silent(1, 90, operation)) == [1]


def test_a_long_operation_that_nobody_waits_for_is_no_hang() -> None:
    assert ranks_of(stuck(0, 9), stuck(1, 9)) == []


def test_a_circle_of_all_ranks_accuses_no_rank() -> None:
    assert ranks_of(waiting(0, 90, 1), waiting(1, 90, 0)) == []
    assert ranks_of(waiting(0, 90, 1, 2), waiting(1, 90, 2), waiting(2, 90, 0)) == []


def test_those_whom_all_others_wait_for_in_the_end_are_done_without_when_they_wait_for_one_another() -> None:
    others = waiting(0, 70, 1, 2), waiting(1, 70, 0, 3), waiting(4, 70), waiting(5, 70, 9)
    assert ranks_of(*others, waiting(2, 61, 3), waiting(3, 62, 2)) == [2, 3]
    assert ranks_of(*others, waiting(2, 59, 3), waiting(3, 59, 2)) == [], "it may only be slow"
    assert ranks_of(*others, waiting(2, 61, 3), waiting(3, 62, 2, 9)) == [], "somebody who is not here is waited for"
    assert ranks_of(*others, waiting(2, 61, 3), waiting(3, 62, 2, 6), stuck(6, 62)) == [6]
    assert ranks_of(*others, waiting(2, 61, 3), waiting(3, 62, 2, 6), stuck(6, 62, "evaluation")) == []


def test_a_silent_rank_that_nobody_waits_for_is_not_blamed_for_another_ones_hang() -> None:
    assert ranks_of(waiting(0, 5, 1), stuck(1, 5), silent(2, 5)) == [1]


def test_whoever_stands_still_on_its_way_to_a_layout_holds_up_those_who_wait_for_it_there() -> None:
    there = [waiting(rank, 70, operation="wait:others") for rank in (0, 2)]
    assert ranks_of(*there, stuck(1, 11, operation="reshaping")) == [1]
    assert ranks_of(*there, stuck(1, 9, operation="reshaping")) == []
    assert ranks_of(*there, stuck(1, 700, operation="checkpoint")) == []
    assert ranks_of(stuck(0, 70, operation="reshaping"), stuck(1, 70, operation="reshaping")) == []


def test_a_rank_that_does_not_park_beside_parked_ones_is_stuck_and_holds_up_their_recovery() -> None:
    parked = [waiting(rank, 6, operation="parked") for rank in (0, 2)]
    assert ranks_of(*parked, stuck(1, 6)) == [1]
    assert ranks_of(*parked, silent(1, 6)) == [1]
    assert ranks_of(*parked, stuck(1, 4)) == []
    assert ranks_of(*parked, waiting(1, 6, 0)) == []
    assert ranks_of(waiting(0, 4, operation="parked"), stuck(1, 6)) == []


def test_two_stuck_ranks_are_both_named() -> None:
    assert ranks_of(waiting(0, 5, 1), stuck(1, 5), waiting(2, 5, 3), stuck(3, 5)) == [1, 3]


def observe(detector: JobDetector, sequence: int, *picture: RankProgress) -> list[Verdict]:
    observation = LivenessObservation(
        job_id="job", sequence=sequence, at_unix_seconds=5_000.0 + sequence, progress=picture
    )
    return [found for found in detector.observe(observation) if isinstance(found, Verdict)]


def test_a_hang_is_reported_once_and_its_end_too() -> None:
    detector, job = JobDetector("job"), SyntheticJob(places=cube())
    frames = list(job.frames(0, 40))
    assert verdicts_of(detector, iter(frames[:30])) == []
    picture = (waiting(0, 2, 1), stuck(1, 2), waiting(2, 2))
    found = observe(detector, 1_000, *picture)
    assert [(v.kind, v.culprits[0].rank, v.culprits[0].device) for v in found] == [(VerdictKind.HANG, 1, "device-1")]
    assert observe(detector, 1_001, *picture) == []
    later = [replace(frame, sequence=2_000 + frame.iteration) for frame in frames[30:35]]
    found = verdicts_of(detector, iter(later))
    assert [(v.kind, v.culprits[0].rank) for v in found] == [(VerdictKind.RECOVERED, 1)]
    again = tuple(replace(one, iteration=35) for one in picture)
    assert [v.kind for v in observe(detector, 3_000, *again)] == [VerdictKind.HANG]


def test_a_rank_without_a_position_is_not_accused() -> None:
    detector = JobDetector("job")
    verdicts_of(detector, SyntheticJob(places=cube()).frames(0, 30))
    assert observe(detector, 1_000, waiting(0, 2), silent(8, 60)) == []
