"""Which links the detector has probed, how often, and what becomes of the reports."""

from functools import cache

import numpy as np
import pytest

from benchmarks.detection.traces.link_traces import Victim, make_link_trace
from evenkeel.contracts.suspicion import Suspicion
from evenkeel.detector.v1 import detector_pb2
from evenkeel.services.detector.adapters.finding_codec import record_of
from evenkeel.services.detector.adapters.observation_codec import liveness_from_proto
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import (
    FrameObservation,
    Observation,
)
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.services.detector.domain.frames.ties import Tie, Ties
from evenkeel.services.detector.domain.job.job import Finding, JobDetector
from evenkeel.services.detector.domain.probes.desk import ITERATIONS_BETWEEN_PROBES, ProbeDesk
from evenkeel.services.detector.domain.probes.standing import TieStanding
from evenkeel.telemetry.v2 import frames_pb2, process_pb2
from tests.unit.detector.probed_run import frame_at, probed_run

ENDS = ((0, 1), (1, 2), (2, 3), (4, 5), (6, 7))


def standing(
    *,
    evidence: list[float],
    ill: tuple[int, ...] = (),
    classes: tuple[int, ...] = (0,) * 5,
    faults: tuple[int, ...] = (-1,) * 5,
) -> TieStanding:
    return TieStanding(
        ties=Ties.of(Tie(group=None, ranks=ends, crosses=False) for ends in ENDS),
        evidence=np.array(evidence),
        ill=np.isin(np.arange(len(ENDS)), ill),
        classes=np.array(classes),
        faults=np.array(faults),
        endpoints=np.full(len(ENDS), -1),
        since=np.full(len(ENDS), -1),
        num_bytes=np.full(len(ENDS), 1000),
    )


def new_desk() -> ProbeDesk:
    return ProbeDesk("job", lambda rank: rank % 2, lambda rank: "node-0")


def consider(desk: ProbeDesk, where: TieStanding, iteration: int = 0) -> Suspicion | None:
    if iteration < desk.next_link_iteration:
        return None
    return next(iter(desk.suspect_link(frame_at(iteration), where)), None)


def asked_of(suspicion: Suspicion | None) -> tuple[tuple[int, int], tuple[int, int]]:
    assert suspicion is not None
    assert suspicion.link is not None
    link = suspicion.link
    return (suspicion.rank, link.partner_rank), (suspicion.peer_rank, link.peer_partner_rank)


def test_a_suspected_link_is_probed_beside_the_calmest_of_its_kind_that_shares_no_rank_with_it() -> None:
    asked = consider(new_desk(), standing(evidence=[0.0, 0.7, 0.0, 0.3, 0.2]))
    assert asked_of(asked) == ((1, 2), (6, 7))
    assert asked is not None
    assert asked.link is not None
    assert (asked.incarnation, asked.link.partner_incarnation) == (1, 0)
    assert (asked.matrix_size, asked.link.num_bytes) == (0, 1000)
    other_kind = standing(evidence=[0.0, 0.7, 0.0, 0.3, 0.2], classes=(0, 0, 0, 0, 1))
    assert asked_of(consider(new_desk(), other_kind)) == ((1, 2), (4, 5))


def test_without_a_link_of_its_kind_that_is_apart_nothing_is_probed() -> None:
    assert consider(new_desk(), standing(evidence=[0.0, 0.9, 0.0, 0.6, 0.8])) is None
    assert consider(new_desk(), standing(evidence=[0.7, 0.0, 0.0, 0.0, 0.0], classes=(0, 1, 1, 1, 1))) is None
    assert consider(new_desk(), standing(evidence=[0.1, 0.2, 0.4, 0.0, 0.0])) is None


def test_links_are_not_probed_more_often_than_the_job_can_afford() -> None:
    desk, noisy = new_desk(), standing(evidence=[0.0, 0.0, 0.9, 0.0, 0.0])
    asked = [iteration for iteration in range(100) if consider(desk, noisy, iteration) is not None]
    assert asked == list(range(0, 100, ITERATIONS_BETWEEN_PROBES))


def test_of_an_endpoint_that_was_called_slow_one_link_is_probed_once() -> None:
    desk, told = new_desk(), standing(evidence=[0.0] * 5, ill=(0, 1), faults=(0, 0, -1, -1, -1))
    assert [iteration for iteration in range(100) if consider(desk, told, iteration) is not None] == [0]
    early = new_desk()
    assert asked_of(consider(early, standing(evidence=[0.0, 0.7, 0.0, 0.0, 0.0])))[0] == (1, 2)
    assert consider(early, told, 50) is None


def story(victim: Victim) -> tuple[FrameObservation, ...]:
    trace = make_link_trace(5, shape="4x2x2", victim=victim, slowdown_percent=50.0, num_iterations=130)
    return tuple(trace.observations())


@cache
def told(victim: Victim, delay: int) -> tuple[tuple[Observation, ...], tuple[Finding, ...]]:
    """A run in which every probe of links is answered so many frames after it was asked for, and what was found."""
    return probed_run(story(victim), report_on, delay=delay)


def report_on(asked: Suspicion) -> ProbeReport:
    link = asked.link
    assert link is not None
    return ProbeReport(
        ranks=(asked.rank, link.partner_rank),
        incarnations=(asked.incarnation, link.partner_incarnation),
        peers=(asked.peer_rank, link.peer_partner_rank),
        size=link.num_bytes,
        seconds=0.003,
        peer_seconds=0.002,
        iteration=asked.iteration,
    )


def probed(verdict: Verdict) -> bool:
    return any(one.name == "probe against a healthy link" for one in verdict.evidence)


@pytest.mark.parametrize("victim", [Victim.LINK, Victim.ENDPOINT])
@pytest.mark.parametrize("delay", [1, 9])
def test_the_report_stands_in_the_verdict_or_it_is_told_again_with_it(victim: Victim, delay: int) -> None:
    _, found = told(victim, delay)
    asked = [one for one in found if isinstance(one, Suspicion) and one.link is not None]
    slow = [one for one in found if isinstance(one, Verdict) and one.kind is VerdictKind.COMMUNICATION_SLOW]
    culprits = {culprit.rank for culprit in slow[0].culprits}
    assert culprits & set(asked_of(asked[0])[0])
    assert not culprits & set(asked_of(asked[0])[1])
    assert sum(probed(one) for one in slow) >= 1
    assert len({one.verdict_id for one in slow}) == len(slow)
    evidence = next(one for verdict in slow for one in verdict.evidence if one.name == "probe against a healthy link")
    assert evidence.value == pytest.approx(1.5)


def test_a_device_that_is_probed_again_and_again_leaves_links_their_probes() -> None:
    detector = JobDetector("job")
    found: list[Finding] = []
    for frame in story(Victim.LINK):
        detector._probes._device_asked_at = frame.iteration - 1
        found += detector.observe(frame)
    assert any(isinstance(one, Suspicion) and one.link is not None for one in found)


@pytest.mark.parametrize("stop", [72, 78, 86, 95])
def test_a_detector_that_is_restored_asks_and_tells_what_one_that_ran_through_does(stop: int) -> None:
    observations, found = told(Victim.LINK, 9)
    killed, again = JobDetector("job"), JobDetector("job")
    before = [one for observation in observations[:stop] for one in killed.observe(observation)]
    load(again, dump(killed))
    after = [one for observation in observations[stop:] for one in again.observe(observation)]
    assert tuple(before + after) == found


def test_what_is_asked_of_links_and_what_is_answered_come_out_as_they_went_in() -> None:
    asked = consider(new_desk(), standing(evidence=[0.0, 0.7, 0.0, 0.3, 0.2]))
    assert asked is not None
    sent = detector_pb2.Suspicion.FromString(record_of(asked).value or b"")
    assert (sent.rank, sent.link.partner_rank, sent.peer_rank, sent.link.peer_partner_rank) == (1, 2, 6, 7)
    assert (sent.incarnation, sent.link.partner_incarnation, sent.link.num_bytes) == (1, 0, 1000)
    probe = process_pb2.ProbeReport(
        peer_rank=6,
        seconds=0.003,
        peer_seconds=0.002,
        iteration=7,
        link=process_pb2.LinkProbeReport(partner_rank=2, partner_incarnation=4, peer_partner_rank=7, num_bytes=1000),
    )
    event = process_pb2.ProcessEvent(kind=process_pb2.PROCESS_EVENT_KIND_PROBED, rank=1, incarnation=3, probe=probe)
    heard = liveness_from_proto("job", 0, frames_pb2.Liveness(event=event)).event
    assert heard is not None
    assert heard.probe == ProbeReport(
        ranks=(1, 2),
        incarnations=(3, 4),
        peers=(6, 7),
        size=1000,
        seconds=0.003,
        peer_seconds=0.002,
        iteration=7,
    )
