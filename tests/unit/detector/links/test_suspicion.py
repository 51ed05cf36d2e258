"""Whom the detector has probed, how often, and which reports it keeps."""

from dataclasses import dataclass

import numpy as np
import pytest

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.services.detector.domain.probes.desk import ITERATIONS_BETWEEN_PROBES, ProbeDesk
from evenkeel.services.detector.domain.probes.suspicion import LARGEST_MATRIX, USUAL_MATRIX
from tests.unit.detector.probed_run import frame_at, verdict_on


@dataclass
class Standing:
    """Where devices stand, whose ranks are 10 and those that follow."""

    evidence: list[float]
    ill: tuple[int, ...] = ()
    keys: list[int] | None = None


def new_desk() -> ProbeDesk:
    return ProbeDesk("job", lambda rank: 0, lambda rank: "node-0")


def consider(desk: ProbeDesk, where: Standing, iteration: int = 0, seconds_per_flop: float = 1e-9) -> Suspicion | None:
    if iteration < desk.next_iteration:
        return None
    count = len(where.evidence)
    asked = desk.suspect(
        frame_at(iteration, ranks=range(10, 10 + count), work_keys=where.keys or [0] * count),
        evidence=np.array(where.evidence),
        ill=np.isin(np.arange(count), where.ill),
        seconds_per_flop=seconds_per_flop,
    )
    return next(iter(asked), None)


def report(rank: int, *, iteration: int = 4, incarnation: int = 0) -> ProbeReport:
    return ProbeReport(
        ranks=(rank,),
        incarnations=(incarnation,),
        peers=(10,),
        size=128,
        seconds=0.008,
        peer_seconds=0.004,
        iteration=iteration,
    )


def slow(rank: int, *, first_iteration: int = 3, incarnation: int = 0) -> Verdict:
    return verdict_on(rank, kind=VerdictKind.COMPUTE_SLOW, first_iteration=first_iteration, incarnation=incarnation)


def recovered(rank: int) -> Verdict:
    return verdict_on(rank, kind=VerdictKind.RECOVERED, first_iteration=9)


def test_a_healthy_frame_raises_no_question() -> None:
    assert consider(new_desk(), Standing(evidence=[0.1, 0.49, 0.0])) is None
    assert consider(new_desk(), Standing(evidence=[])) is None


def test_the_suspect_is_probed_beside_the_calmest_peer_that_does_the_same_work() -> None:
    asked = consider(new_desk(), Standing(evidence=[0.0, 0.7, 0.3, 0.2], keys=[1, 2, 2, 2]))
    assert asked is not None
    assert (asked.rank, asked.peer_rank) == (11, 13)


def test_without_a_peer_of_the_same_work_any_healthy_one_serves_and_without_any_nobody_is_probed() -> None:
    asked = consider(new_desk(), Standing(evidence=[0.2, 0.7], keys=[1, 2]))
    assert asked is not None
    assert asked.peer_rank == 10
    assert consider(new_desk(), Standing(evidence=[0.9, 0.7])) is None
    assert consider(new_desk(), Standing(evidence=[0.0, 0.7], ill=(0,))) is None


def test_a_job_is_not_probed_more_often_than_it_can_afford() -> None:
    desk, noisy = new_desk(), Standing(evidence=[0.0, 0.9])
    asked = [i for i in range(100) if consider(desk, noisy, i) is not None]
    assert asked == list(range(0, 100, ITERATIONS_BETWEEN_PROBES))


def test_a_device_that_was_called_slow_without_a_probe_is_probed_once() -> None:
    desk, sick = new_desk(), Standing(evidence=[0.0, 0.0], ill=(1,))
    assert [i for i in range(100) if consider(desk, sick, i) is not None] == [0]
    desk.told(recovered(11))
    assert consider(desk, sick, 200) is not None


@pytest.mark.parametrize(("seconds_per_flop", "size"), [(1e-9, 100), (1e-16, LARGEST_MATRIX), (1.0, 64)])
def test_a_product_takes_a_few_milliseconds_on_a_healthy_device(seconds_per_flop: float, size: int) -> None:
    asked = consider(new_desk(), Standing(evidence=[0.0, 0.9]), seconds_per_flop=seconds_per_flop)
    assert asked is not None
    assert asked.matrix_size == size


@pytest.mark.parametrize("seconds_per_flop", [0.0, float("nan")])
def test_a_job_that_does_not_say_what_its_work_costs_gets_a_probe_of_the_usual_size(seconds_per_flop: float) -> None:
    asked = consider(new_desk(), Standing(evidence=[0.0, 0.9]), seconds_per_flop=seconds_per_flop)
    assert asked is not None
    assert asked.matrix_size == USUAL_MATRIX


def test_a_report_counts_for_its_process_and_not_for_an_older_story() -> None:
    desk = new_desk()
    desk.take(report(11))
    assert desk.told(slow(11, first_iteration=4)) == report(11)
    assert desk.told(slow(11, first_iteration=5)) is None
    assert desk.told(slow(12, first_iteration=0)) is None
    desk.take(report(11, incarnation=1))
    assert desk.told(slow(11, first_iteration=4)) is None
    assert report(11).ratio == 2.0


def test_a_report_that_comes_after_the_verdict_names_the_accusation_it_belongs_to() -> None:
    desk = new_desk()
    assert desk.take(report(11)) is None
    assert desk.told(slow(11, first_iteration=5)) is None
    assert desk.take(report(11, incarnation=1)) is None
    assert desk.take(report(12)) is None
    assert desk.take(report(11)) == (slow(11, first_iteration=5), report(11))
    assert desk.take(report(11)) is None, "it is told once"
    desk.told(slow(11, first_iteration=5))
    desk.told(recovered(11))
    assert desk.take(report(11)) is None
