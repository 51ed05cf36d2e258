"""Which link to probe, beside which, and what the probes said. Pure.

What :mod:`suspicion` is for devices: a link is a suspect when its test has gathered half of the evidence that it takes,
or when it was just called slow without a probe, by itself or as one of its endpoint's; of a group of more than two,
:mod:`ring_search` says which link. Probes decide nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.frames.probe_reports import Ends, LinkProbeReport
from evenkeel.services.detector.domain.probes.desk import ITERATIONS_BETWEEN_PROBES, SuspectedLink, Suspicion, choose
from evenkeel.services.detector.domain.probes.ring import GroupStanding, LinkPair, RingSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStanding:
    """Where the links between two ranks stand in their tests; one entry each.

    Attributes:
        ends: Their ranks, one row each, ascending.
        evidence: Against each, as a part of what a verdict takes.
        ill: It is slow, or shares what is slow.
        classes: Equal where links are alike.
        faults: Equal where links share what was told of them; -1 where nothing was.
        num_bytes: Bytes that take about ``PROBE_SECONDS`` over a healthy link of the class.
        groups: The groups of more than two; None where there are none.
    """

    ends: Ints
    evidence: Floats
    ill: Bools
    classes: Ints
    faults: Ints
    num_bytes: Ints
    groups: GroupStanding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAccusation:
    """The newest verdict about an endpoint, a link or a group, as far as a probe that comes later needs it."""

    ranks: tuple[int, ...]
    first_iteration: int
    throughput: float
    margin: float
    confidence: float

    @property
    def is_group(self) -> bool:
        """Whether it may be any of several links."""
        return len(self.ranks) > 2

    def concerns(self, ends: Ends) -> bool:
        """Whether a link is part of what is accused."""
        return self.ranks[0] in ends if len(self.ranks) == 1 else set(ends) <= set(self.ranks)

    def explained_by(self, report: LinkProbeReport) -> bool:
        """Whether a report is about a link of it, and of late enough."""
        return self.concerns(report.ends) and report.iteration >= self.first_iteration


@dataclass(slots=True, eq=False)
class LinkDesk:
    """Asks for probes of links, sparingly, and keeps their reports."""

    _asked_at: int = -ITERATIONS_BETWEEN_PROBES
    _asked: dict[Ends, Ends] = field(default_factory=dict)
    _accused: list[LinkAccusation] = field(default_factory=list)
    _reports: dict[Ends, LinkProbeReport] = field(default_factory=dict)
    _search: RingSearch = field(default_factory=RingSearch)

    @property
    def next_iteration(self) -> int:
        """The first iteration in which the job can afford another probe after those of links."""
        return self._asked_at + ITERATIONS_BETWEEN_PROBES

    def consider(
        self,
        job_id: str,
        standing: LinkStanding,
        *,
        incarnation_of: Callable[[int], int],
        node_of: Callable[[int], str],
        iteration: int,
        at_unix_seconds: float,
    ) -> Suspicion | None:
        """The question that this iteration raises, if it raises one; ask only from :attr:`next_iteration` on.

        Args:
            job_id: The job.
            standing: After the iteration's tests.
            incarnation_of: The process of each rank.
            node_of: The node of each rank.
            iteration: The iteration.
            at_unix_seconds: Its time, on the clock of the data.
        """
        asked = np.zeros(len(standing.ends), dtype=np.bool_)
        for row in np.flatnonzero(standing.ill).tolist():
            ends = _ends(standing, row)
            asked[row] = self._asked.get(ends) == _processes(ends, incarnation_of)
        # One link of what was told to be slow is enough.
        asked_faults = standing.faults[asked & (standing.faults >= 0)]
        asked |= np.isin(standing.faults, asked_faults)
        probe = _chosen(standing, asked)
        if probe is not None:
            self._asked[probe.suspect] = _processes(probe.suspect, incarnation_of)
        elif standing.groups is not None:
            probe = self._search.consider(
                standing.groups,
                incarnation_of=incarnation_of,
                node_of=node_of,
                iteration=iteration,
                asked_faults=asked_faults,
            )
        if probe is None:
            return None
        suspect, peer = probe.suspect, probe.peer
        self._asked_at = iteration
        return Suspicion(
            job_id=job_id,
            rank=suspect[0],
            incarnation=incarnation_of(suspect[0]),
            peer_rank=peer[0],
            peer_incarnation=incarnation_of(peer[0]),
            iteration=iteration,
            at_unix_seconds=at_unix_seconds,
            link=SuspectedLink(
                partner_rank=suspect[1],
                partner_incarnation=incarnation_of(suspect[1]),
                peer_partner_rank=peer[1],
                peer_partner_incarnation=incarnation_of(peer[1]),
                num_bytes=probe.num_bytes,
            ),
        )

    def take(self, report: LinkProbeReport) -> tuple[LinkAccusation, LinkProbeReport] | None:
        """Keep a report; the newest of each link counts.

        Returns:
            The accusation it came too late for, and what is to be told with it again: of a group, once its search is
            over, the report of the link that stands out most.
        """
        processes = self._search.processes(report.ends, report.peer_ends)
        if processes is not None and report.ratio < 1:  # either of the two might have been the slow one
            report = _turned(report, processes)
        self._reports[report.ends] = report
        self._search.take(report.ends, report.ratio, report.iteration)
        late = [one for one in self._accused if one.concerns(report.ends) and self._is_settled(one)]
        self._accused = [one for one in self._accused if one not in late]
        if not late:
            return None
        same = [one for one in self._reports.values() if late[-1].is_group and late[-1].explained_by(one)]
        return late[-1], max(same, key=lambda one: one.ratio, default=report)

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: later reports are of no use to it."""
        self._asked_at = min(self._asked_at, iteration)
        self._reports = {ends: one for ends, one in self._reports.items() if one.iteration < iteration}
        self._accused = [replace(one, first_iteration=min(one.first_iteration, iteration)) for one in self._accused]
        self._search.go_back(iteration)

    def told(self, verdict: Verdict, *, recovered: bool, probed: bool) -> None:
        """A verdict was given; a probe of what it calls slow is still to come unless ``probed``."""
        ranks = tuple(culprit.rank for culprit in verdict.culprits)
        accusation = LinkAccusation(
            ranks=ranks,
            first_iteration=verdict.first_iteration,
            throughput=verdict.throughput,
            margin=verdict.throughput_margin,
            confidence=verdict.confidence,
        )
        self._accused = [one for one in self._accused if one.ranks != ranks]
        if recovered:
            self._asked = {ends: those for ends, those in self._asked.items() if not accusation.concerns(ends)}
            self._reports = {ends: one for ends, one in self._reports.items() if not accusation.concerns(ends)}
            self._search.forget(accusation.concerns)
        elif not probed:
            self._accused.append(accusation)

    def report_on(
        self, ranks: Sequence[int], *, incarnation_of: Callable[[int], int], since_iteration: int
    ) -> LinkProbeReport | None:
        """The newest report about a link of an endpoint, or a link, if it was asked for late enough.

        Of a group, once the search is over, the report of the link that stands out most.
        """
        whose = LinkAccusation(
            ranks=tuple(ranks), first_iteration=since_iteration, throughput=1.0, margin=0.0, confidence=0.0
        )
        known = [
            report
            for report in self._reports.values()
            if whose.explained_by(report) and report.incarnations == _processes(report.ends, incarnation_of)
        ]
        if whose.is_group:
            return max(known, key=lambda report: report.ratio, default=None) if self._is_settled(whose) else None
        return max(known, key=lambda report: report.iteration, default=None)

    def _is_settled(self, accusation: LinkAccusation) -> bool:
        """Whether no further probe is to come for it."""
        return not accusation.is_group or self._search.is_over(accusation.ranks, accusation.first_iteration)


def _chosen(standing: LinkStanding, asked: Bools) -> LinkPair | None:
    """The suspect among the links that are measured by themselves, and a healthy one of its kind."""

    def able(suspect: int) -> Bools:
        """All four ranks take part at the same time, and what is compared is alike."""
        apart = ~np.isin(standing.ends, standing.ends[suspect]).any(axis=1)
        found: Bools = apart & (standing.classes == standing.classes[suspect])
        return found

    chosen = choose(evidence=standing.evidence, ill=standing.ill, asked=asked, work_keys=standing.classes, able=able)
    if chosen is None:
        return None
    suspect, peer = (_ends(standing, row) for row in chosen)
    return LinkPair(suspect=suspect, peer=peer, num_bytes=int(standing.num_bytes[chosen[0]]))


def _turned(report: LinkProbeReport, incarnations: Ends) -> LinkProbeReport:
    """The same probe, told of its other link."""
    return replace(
        report,
        ends=report.peer_ends,
        incarnations=incarnations,
        peer_ends=report.ends,
        seconds=report.peer_seconds,
        peer_seconds=report.seconds,
    )


def _ends(standing: LinkStanding, row: int) -> Ends:
    low, high = standing.ends[row].tolist()
    return low, high


def _processes(ends: Ends, incarnation_of: Callable[[int], int]) -> Ends:
    return incarnation_of(ends[0]), incarnation_of(ends[1])
