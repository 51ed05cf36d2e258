"""Whom the detector has probed, how often, and which reports it keeps."""

import numpy as np
import pytest

from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.services.detector.domain.probes.desk import (
    ITERATIONS_BETWEEN_PROBES,
    LARGEST_MATRIX,
    USUAL_MATRIX,
    Accusation,
    Standing,
    Suspicion,
    SuspicionDesk,
)


def standing(*, evidence: list[float], ill: tuple[int, ...] = (), keys: list[int] | None = None) -> Standing:
    count = len(evidence)
    return Standing(
        ranks=np.arange(count, dtype=np.int64) + 10,
        incarnations=np.zeros(count, dtype=np.int64),
        evidence=np.array(evidence),
        ill=np.isin(np.arange(count), ill),
        work_keys=np.array(keys or [0] * count, dtype=np.float64),
    )


def consider(
    desk: SuspicionDesk, where: Standing, iteration: int = 0, seconds_per_flop: float = 1e-9
) -> Suspicion | None:
    if iteration < desk.next_iteration:
        return None
    return desk.consider("job", where, iteration=iteration, at_unix_seconds=5.0, seconds_per_flop=seconds_per_flop)


def report(rank: int, *, iteration: int = 4, incarnation: int = 0) -> ProbeReport:
    return ProbeReport(
        rank=rank,
        incarnation=incarnation,
        peer_rank=10,
        matrix_size=128,
        seconds=0.008,
        peer_seconds=0.004,
        iteration=iteration,
    )


def test_a_healthy_frame_raises_no_question() -> None:
    assert consider(SuspicionDesk(), standing(evidence=[0.1, 0.49, 0.0])) is None
    assert consider(SuspicionDesk(), standing(evidence=[])) is None


def test_the_suspect_is_probed_beside_the_calmest_peer_that_does_the_same_work() -> None:
    asked = consider(SuspicionDesk(), standing(evidence=[0.0, 0.7, 0.3, 0.2], keys=[1, 2, 2, 2]))
    assert asked is not None
    assert (asked.rank, asked.peer_rank) == (11, 13)


def test_without_a_peer_of_the_same_work_any_healthy_one_serves_and_without_any_nobody_is_probed() -> None:
    asked = consider(SuspicionDesk(), standing(evidence=[0.2, 0.7], keys=[1, 2]))
    assert asked is not None
    assert asked.peer_rank == 10
    assert consider(SuspicionDesk(), standing(evidence=[0.9, 0.7])) is None
    assert consider(SuspicionDesk(), standing(evidence=[0.0, 0.7], ill=(0,))) is None


def test_a_job_is_not_probed_more_often_than_it_can_afford() -> None:
    desk, noisy = SuspicionDesk(), standing(evidence=[0.0, 0.9])
    asked = [i for i in range(100) if consider(desk, noisy, i) is not None]
    assert asked == list(range(0, 100, ITERATIONS_BETWEEN_PROBES))


def test_a_device_that_was_called_slow_without_a_probe_is_probed_once() -> None:
    desk, sick = SuspicionDesk(), standing(evidence=[0.0, 0.0], ill=(1,))
    assert [i for i in range(100) if consider(desk, sick, i) is not None] == [0]
    desk.recovered([11])
    assert consider(desk, sick, 200) is not None


@pytest.mark.parametrize(("seconds_per_flop", "size"), [(1e-9, 100), (1e-16, LARGEST_MATRIX), (1.0, 64)])
def test_a_product_takes_a_few_milliseconds_on_a_healthy_device(seconds_per_flop: float, size: int) -> None:
    asked = consider(SuspicionDesk(), standing(evidence=[0.0, 0.9]), seconds_per_flop=seconds_per_flop)
    assert asked is not None
    assert asked.matrix_size == size


@pytest.mark.parametrize("seconds_per_flop", [0.0, float("nan")])
def test_a_job_that_does_not_say_what_its_work_costs_gets_a_probe_of_the_usual_size(seconds_per_flop: float) -> None:
    asked = consider(SuspicionDesk(), standing(evidence=[0.0, 0.9]), seconds_per_flop=seconds_per_flop)
    assert asked is not None
    assert asked.matrix_size == USUAL_MATRIX


def test_a_report_counts_for_its_process_and_not_for_an_older_story() -> None:
    desk = SuspicionDesk()
    desk.take(report(11))
    assert desk.report_on(11, 0, since_iteration=4) == report(11)
    assert desk.report_on(11, 0, since_iteration=5) is None
    assert desk.report_on(11, 1, since_iteration=0) is None
    assert desk.report_on(12, 0, since_iteration=0) is None
    assert report(11).throughput == 0.5


def test_a_report_that_comes_after_the_verdict_names_the_accusation_it_belongs_to() -> None:
    desk, accusation = SuspicionDesk(), Accusation(incarnation=0, first_iteration=3, confidence=0.99)
    assert desk.take(report(11)) is None
    desk.accuse(11, accusation)
    assert desk.take(report(11)) == accusation
    assert desk.take(report(11, incarnation=1)) is None
    desk.recovered([11])
    assert desk.take(report(11)) is None
