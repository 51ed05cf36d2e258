"""Which link of a slow group is probed next, beside which, and when the search for the slow one is over."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.detection.traces.link_traces import Victim, make_link_trace
from evenkeel.contracts.suspicion import Suspicion
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import (
    FrameObservation,
    Observation,
)
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.services.detector.domain.frames.ties import Tie, Ties
from evenkeel.services.detector.domain.job.job import Finding, JobDetector
from evenkeel.services.detector.domain.probes.desk import ProbeDesk
from evenkeel.services.detector.domain.probes.ring import LONG_RING, STANDS_OUT, LinkPair, RingSearch, ring_of
from evenkeel.services.detector.domain.probes.standing import TieStanding
from tests.unit.detector.probed_run import frame_at, probed_run, verdict_on

Ends = tuple[int, int]
FOUR, OTHERS = (0, 1, 2, 3), (4, 5, 6, 7)
NO_FAULTS = np.zeros(0, dtype=np.int64)


def standing(
    *members: tuple[int, ...],
    evidence: tuple[float, ...],
    ill: tuple[int, ...] = (),
    since: int = 0,
    endpoint: int = -1,
) -> TieStanding:
    is_ill = np.isin(np.arange(len(members)), ill)
    return TieStanding(
        ties=Ties.of(Tie(group=number, ranks=ranks, crosses=True) for number, ranks in enumerate(members)),
        evidence=np.array(evidence),
        ill=is_ill,
        classes=np.full(len(members), 2),
        faults=np.where(is_ill, 0, -1),
        endpoints=np.where(is_ill, endpoint, -1),
        since=np.where(is_ill, since, -1),
        num_bytes=np.full(len(members), 1000),
    )


def new_search(ranks_per_node: int = 1000) -> RingSearch:
    return RingSearch(lambda ends: tuple(rank % 2 for rank in ends), lambda rank: f"node-{rank // ranks_per_node}")


def consider(search: RingSearch, where: TieStanding, iteration: int = 0) -> LinkPair | None:
    return search.consider(where, iteration=iteration, asked_faults=NO_FAULTS)


def pairs(search: RingSearch, where: TieStanding) -> list[tuple[Ends, Ends]]:
    """What is asked one after the other when nothing ever stands out."""
    asked = []
    while (probe := consider(search, where, 20 * len(asked))) is not None:
        asked.append((probe.suspect, probe.peer))
        assert len(asked) < 100
    return asked


def test_a_ring_has_as_many_links_as_ranks() -> None:
    assert ring_of((1, 4, 7, 9)) == ((1, 4), (4, 7), (7, 9), (1, 9))


def test_links_of_a_slow_group_are_probed_one_by_one_beside_one_of_a_healthy_group() -> None:
    asked = pairs(new_search(), standing(FOUR, OTHERS, evidence=(0.0, 0.2), ill=(0,)))
    assert [suspect for suspect, _ in asked] == [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert [peer for _, peer in asked] == [(4, 5), (5, 6), (6, 7), (4, 7)]
    suspected = standing(FOUR, OTHERS, evidence=(0.7, 0.2))
    assert pairs(new_search(), suspected) == asked
    assert consider(new_search(), standing(FOUR, OTHERS, evidence=(0.4, 0.2))) is None


def test_without_a_healthy_group_two_links_of_the_ring_stand_beside_each_other() -> None:
    assert pairs(new_search(), standing(FOUR, evidence=(0.0,), ill=(0,))) == [((0, 1), (2, 3)), ((1, 2), (0, 3))]
    assert pairs(new_search(), standing(FOUR, OTHERS, evidence=(0.0, 0.9), ill=(0,)))[0] == ((0, 1), (2, 3))
    five = pairs(new_search(), standing((0, 1, 2, 3, 4), evidence=(0.0,), ill=(0,)))
    assert {ends for pair in five for ends in pair} == set(ring_of((0, 1, 2, 3, 4)))
    assert len(five) == 3
    assert pairs(new_search(), standing((0, 1, 2), evidence=(0.0,), ill=(0,))) == []


def test_links_between_nodes_are_compared_with_links_between_nodes() -> None:
    asked = pairs(new_search(2), standing(FOUR, OTHERS, evidence=(0.0, 0.0), ill=(0,)))
    assert [peer for _, peer in asked] == [(4, 5), (5, 6), (6, 7), (4, 7)]
    # Here the first link is between nodes and the second is not; in the other ring it is the other way round.
    asked = pairs(new_search(2), standing((1, 2, 3, 8), OTHERS, evidence=(0.0, 0.0), ill=(0,)))
    assert asked == [((1, 2), (5, 6)), ((2, 3), (4, 5)), ((3, 8), (5, 6)), ((1, 8), (4, 7))]


def test_of_an_endpoint_one_link_is_enough() -> None:
    of_two = standing((0, 1, 2, 3), (0, 4, 8, 12), (1, 5, 9, 13), evidence=(0.0,) * 3, ill=(0, 1), endpoint=0)
    asked = pairs(new_search(), of_two)
    assert len(asked) == 1
    assert 0 in asked[0][0]
    known = standing((0, 1, 2, 3), evidence=(0.0,), ill=(0,), endpoint=0)
    fault = np.zeros(1, dtype=np.int64)
    assert new_search().consider(known, iteration=0, asked_faults=fault) is None


def test_a_search_that_was_over_begins_anew_with_a_later_fault() -> None:
    search = new_search()
    assert len(pairs(search, standing(FOUR, OTHERS, evidence=(0.0, 0.0), ill=(0,)))) == 4
    assert pairs(search, standing(FOUR, OTHERS, evidence=(0.0, 0.0), ill=(0,), since=10)) == []
    again = consider(search, standing(FOUR, OTHERS, evidence=(0.0, 0.0), ill=(0,), since=90), 95)
    assert again is not None
    assert again.suspect == (0, 1)


class Answering:
    """A desk whose probes are answered: as many times longer over one link as it is slow."""

    def __init__(self, slow: Ends, factor: float) -> None:
        self.desk, self.slow, self.factor = ProbeDesk("job", lambda rank: 7, lambda rank: "node-0"), slow, factor
        self.asked: list[tuple[Ends, Ends]] = []

    def next(self, groups: TieStanding, iteration: int) -> ProbeReport | None:
        asked = self.desk.suspect_link(frame_at(iteration), groups)
        if not asked:
            return None
        report = report_on(asked[0], self.slow, self.factor)
        self.asked.append((report.ranks, report.peers))
        self.desk.take(report)
        return report


def report_on(asked: Suspicion, slow: Ends, factor: float) -> ProbeReport:
    link = asked.link
    assert link is not None
    ends, peer_ends = (asked.rank, link.partner_rank), (asked.peer_rank, link.peer_partner_rank)
    return ProbeReport(
        ranks=ends,
        incarnations=(asked.incarnation, link.partner_incarnation),
        peers=peer_ends,
        size=link.num_bytes,
        seconds=0.002 * (factor if ends == slow else 1.0),
        peer_seconds=0.002 * (factor if peer_ends == slow else 1.0),
        iteration=asked.iteration,
    )


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(), size=st.integers(4, 12), with_healthy=st.booleans(), factor=st.sampled_from([1.0, 1.3, 2.0, 6.0])
)
def test_the_slow_link_is_found_or_every_link_was_probed_once(
    data: st.DataObject, size: int, with_healthy: bool, factor: float
) -> None:
    ranks = data.draw(st.lists(st.integers(0, 99), min_size=2 * size, max_size=2 * size, unique=True))
    members, others = tuple(sorted(ranks[:size])), tuple(sorted(ranks[size:]))
    slow = data.draw(st.sampled_from(ring_of(members)))
    both = (members, others) if with_healthy else (members,)
    groups = standing(*both, evidence=(0.0,) * len(both), ill=(0,))
    answering = Answering(slow, factor)
    iteration = 0
    while answering.next(groups, iteration) is not None:
        iteration += 20
        assert iteration <= 20 * size
    known = [ends for pair in answering.asked for ends in pair if set(ends) <= set(members)]
    assert all(not set(suspect) & set(peer) for suspect, peer in answering.asked)
    found = answering.desk.told(verdict_on(*members, kind=VerdictKind.COMMUNICATION_SLOW))
    assert found is not None
    if factor > 1.0:
        assert found.ranks == slow
        assert found.ratio == pytest.approx(factor)
    if factor < STANDS_OUT or size < LONG_RING:
        assert set(known) == set(ring_of(members))
    else:
        assert answering.slow in answering.asked[-1]
    if with_healthy:
        assert len(known) == len(set(known))


SEED = 8
SLOW_IN_GROUP = 2
"""Which link of the slow group's ring it is."""


def story() -> tuple[tuple[int, ...], tuple[FrameObservation, ...]]:
    """Transfers of a run in which one link of a tensor parallel group of four is slow: the group as a whole is."""
    trace = make_link_trace(SEED, shape="4x2x2", victim=Victim.GROUP, slowdown_percent=100.0, num_iterations=150)
    assert trace.fault is not None
    frames = tuple(trace.observations())
    return tuple(sorted(trace.fault.ranks)), frames


@cache
def told() -> tuple[tuple[int, ...], tuple[Observation, ...], tuple[Finding, ...]]:
    """The group, and a run in which probes are answered nine frames after they were asked for."""
    members, frames = story()
    slow = ring_of(members)[SLOW_IN_GROUP]
    observations, found = probed_run(frames, lambda asked: report_on(asked, slow, 2.0), delay=9)
    return members, observations, found


def probed(found: tuple[Finding, ...], members: tuple[int, ...]) -> list[tuple[float, str]]:
    """What verdicts about the group say of probes."""
    return [
        (one.value, one.text)
        for verdict in found
        if isinstance(verdict, Verdict) and verdict.kind is VerdictKind.COMMUNICATION_SLOW
        for one in verdict.evidence
        if one.name == "probe against a healthy link" and {each.rank for each in verdict.culprits} == set(members)
    ]


def test_the_verdict_of_a_group_says_which_link_of_it_is_slow_once_all_were_probed() -> None:
    members, _, found = told()
    low, high = ring_of(members)[SLOW_IN_GROUP]
    ((value, text),) = probed(found, members)
    assert value == pytest.approx(2.0)
    assert f"between ranks {low} and {high} took" in text
    asked = [(one.rank, one.link.partner_rank) for one in found if isinstance(one, Suspicion) and one.link is not None]
    assert sorted(asked) == sorted(ring_of(members))


def test_a_detector_that_is_restored_in_a_search_asks_and_tells_what_one_that_ran_through_does() -> None:
    _, observations, found = told()
    stop = int(0.55 * len(observations))
    killed, again = JobDetector("job"), JobDetector("job")
    before = [one for observation in observations[:stop] for one in killed.observe(observation)]
    load(again, dump(killed))
    after = [one for observation in observations[stop:] for one in again.observe(observation)]
    assert tuple(before + after) == found
