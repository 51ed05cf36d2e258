"""Whom to probe, and what the probes said: devices, and links between two ranks. Pure.

A suspect is a device or a link whose sequential test has gathered half of the evidence that it takes, or one that was
just called slow without a probe, a link by itself or as one of its endpoint's; of a group of more than two :mod:`ring`
says which link. Its probe runs beside a peer that did the same work, or a link of the kind. Probes decide nothing: the
tests keep their false-alarm budget whatever they say, and their figures stand in the verdict for a person to weigh.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from evenkeel.contracts.suspicion import SuspectedLink, Suspicion
from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport, Ranks
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.probes.ring import LinkPair, RingSearch
from evenkeel.services.detector.domain.probes.standing import TieStanding
from evenkeel.services.detector.domain.probes.suspicion import SUSPECT_AT, choose, matrix_size_for

ITERATIONS_BETWEEN_PROBES = 20
"""A job pays for at most one probe in so many iterations, however noisy it is."""

_RECOVERIES = (VerdictKind.RECOVERED, VerdictKind.COMMUNICATION_RECOVERED)
_OF_DEVICES = (VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED)


@dataclass(slots=True, eq=False)
class ProbeDesk:
    """Asks for the probes of one job, sparingly, and keeps their reports.

    Attributes:
        job_id: The job.
        incarnation_of: The process of each of its ranks.
        node_of: The node of each.
    """

    job_id: str = field(metadata=GIVEN)
    incarnation_of: Callable[[int], int] = field(metadata=GIVEN)
    node_of: Callable[[int], str] = field(metadata=GIVEN)
    _device_asked_at: int = -ITERATIONS_BETWEEN_PROBES
    _link_asked_at: int = -ITERATIONS_BETWEEN_PROBES
    # Processes of the devices and links that were asked for.
    _asked: dict[Ranks, Ranks] = field(default_factory=dict)
    # Verdicts that wait for a probe of what they call slow.
    _accused: list[Verdict] = field(default_factory=list)
    _reports: dict[Ranks, ProbeReport] = field(default_factory=dict)
    _search: RingSearch = field(init=False)

    def __post_init__(self) -> None:
        self._search = RingSearch(self._processes, self.node_of)

    @property
    def next_link_iteration(self) -> int:
        """The first iteration in which the job can afford to have a link asked.

        Not after devices: one that noise makes suspicious again and again would leave links none.
        """
        return self._link_asked_at + ITERATIONS_BETWEEN_PROBES

    @property
    def next_iteration(self) -> int:
        """The first iteration in which it can afford to have a device asked; these wait for probes of links, too."""
        return max(self._device_asked_at + ITERATIONS_BETWEEN_PROBES, self.next_link_iteration)

    def suspect(
        self, frame: FrameObservation, *, evidence: Floats, ill: Bools, seconds_per_flop: float
    ) -> list[Suspicion]:
        """The device of a plain frame to ask, if one is worth it; only from :attr:`next_iteration` on.

        Args:
            frame: The frame.
            evidence: Against the device of each entry, as a part of what a verdict takes.
            ill: Called slow already.
            seconds_per_flop: Of a healthy device, or NaN; it sets the size of the probe.
        """
        if not np.count_nonzero(ill) and np.maximum.reduce(evidence, initial=0.0) < SUSPECT_AT:
            return []
        asked = self._were_asked(frame.ranks[:, None], ill)
        chosen = choose(evidence=evidence, ill=ill, asked=asked, work_keys=frame.work_keys)
        if chosen is None:
            return []
        suspect, peer = ((int(frame.ranks[entry]),) for entry in chosen)
        self._device_asked_at = frame.iteration
        self._asked[suspect] = self._processes(suspect)
        return [replace(self._question(frame, suspect, peer), matrix_size=matrix_size_for(seconds_per_flop))]

    def suspect_link(self, frame: FrameObservation, standing: TieStanding | None) -> list[Suspicion]:
        """The link to ask, if one is worth it; only from :attr:`next_link_iteration` on.

        Args:
            frame: A plain frame.
            standing: After its tests; None where no link is worth a question.
        """
        if standing is None:
            return []
        pairs = np.flatnonzero(standing.ties.sizes == 2)
        ends, faults = standing.ties.ends(pairs), standing.faults[pairs]
        asked = self._were_asked(ends, standing.ill[pairs])
        # One link of what was told to be slow is enough.
        asked_faults = faults[asked & (faults >= 0)]
        probe = _chosen(standing, pairs, ends, asked | np.isin(faults, asked_faults))
        if probe is not None:
            self._asked[probe.suspect] = self._processes(probe.suspect)
        else:
            probe = self._search.consider(standing, iteration=frame.iteration, asked_faults=asked_faults)
        if probe is None:
            return []
        self._link_asked_at = frame.iteration
        partner, peer_partner = probe.suspect[1], probe.peer[1]
        link = SuspectedLink(
            partner_rank=partner,
            partner_incarnation=self.incarnation_of(partner),
            peer_partner_rank=peer_partner,
            peer_partner_incarnation=self.incarnation_of(peer_partner),
            num_bytes=probe.num_bytes,
        )
        return [replace(self._question(frame, probe.suspect, probe.peer), link=link)]

    def take(self, report: ProbeReport) -> tuple[Verdict, ProbeReport] | None:
        """Keep a report; the newest of each device and link counts.

        Returns:
            The verdict it came too late for, and what is to be told with it again: of a group, once its search is
            over, the report of the link that stands out most.
        """
        processes = self._search.processes(report.ranks, report.peers)
        if processes is not None and report.ratio < 1:  # either of the two might have been the slow one
            report = report.turned(processes)
        self._reports[report.ranks] = report
        self._search.take(report.ranks, report.ratio, report.iteration)
        late = [one for one in self._accused if _concerns(one, report.ranks) and self._is_settled(one)]
        if not late or report.incarnations != self._processes(report.ranks):
            return None
        self._accused = [one for one in self._accused if one not in late]
        same = [one for one in self._reports.values() if _is_of_group(late[-1]) and _explains(one, late[-1])]
        return late[-1], max(same, key=lambda one: one.ratio, default=report)

    def told(self, verdict: Verdict) -> ProbeReport | None:
        """A verdict about a device, or about links, is given.

        Returns:
            What a probe of it showed that was asked for late enough, of a group, once the search is over, of the link
            that stands out most. Where there is none, the verdict waits for it.
        """
        whose = _is_of_device(verdict), verdict.ranks
        self._accused = [one for one in self._accused if (_is_of_device(one), one.ranks) != whose]
        if verdict.kind in _RECOVERIES:
            self._asked = {ranks: those for ranks, those in self._asked.items() if not _concerns(verdict, ranks)}
            self._reports = {ranks: one for ranks, one in self._reports.items() if not _concerns(verdict, ranks)}
            self._search.forget(lambda ends: _concerns(verdict, ends))
            return None
        known = [
            report
            for report in self._reports.values()
            if _explains(report, verdict) and report.incarnations == self._processes(report.ranks)
        ]
        found = max(
            known if self._is_settled(verdict) else (),
            key=lambda report: report.ratio if _is_of_group(verdict) else report.iteration,
            default=None,
        )
        if found is None:
            self._accused.append(replace(verdict, evidence=()))
        return found

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: later reports are of no use to it."""
        self._device_asked_at = min(self._device_asked_at, iteration)
        self._link_asked_at = min(self._link_asked_at, iteration)
        self._reports = {ranks: one for ranks, one in self._reports.items() if one.iteration < iteration}
        self._accused = [replace(one, first_iteration=min(one.first_iteration, iteration)) for one in self._accused]
        self._search.go_back(iteration)

    def _were_asked(self, ranks: Ints, ill: Bools) -> Bools:
        """Which of those that are ill were asked for, as the processes that they are: one row of ranks each."""
        asked = np.zeros(len(ill), dtype=np.bool_)
        for row in np.flatnonzero(ill).tolist():
            whose = tuple(ranks[row].tolist())
            asked[row] = self._asked.get(whose) == self._processes(whose)
        return asked

    def _question(self, frame: FrameObservation, suspect: Ranks, peer: Ranks) -> Suspicion:
        return Suspicion(
            job_id=self.job_id,
            rank=suspect[0],
            incarnation=self.incarnation_of(suspect[0]),
            peer_rank=peer[0],
            peer_incarnation=self.incarnation_of(peer[0]),
            iteration=frame.iteration,
            at_unix_seconds=frame.closed_at_unix_seconds,
        )

    def _processes(self, ranks: Ranks) -> Ranks:
        return tuple(self.incarnation_of(rank) for rank in ranks)

    def _is_settled(self, verdict: Verdict) -> bool:
        """Whether no further probe is to come for it."""
        return not _is_of_group(verdict) or self._search.is_over(verdict.ranks, verdict.first_iteration)


def _chosen(standing: TieStanding, pairs: Ints, ends: Ints, asked: Bools) -> LinkPair | None:
    """The suspect among the links that are measured by themselves, and a healthy one of its kind."""
    evidence, ill, classes = standing.evidence[pairs], standing.ill[pairs], standing.classes[pairs]

    def able(suspect: int) -> Bools:
        """All four ranks take part at the same time, and what is compared is alike."""
        return np.asarray(~np.isin(ends, ends[suspect]).any(axis=1) & (classes == classes[suspect]))

    chosen = choose(evidence=evidence, ill=ill, asked=asked, work_keys=classes, able=able)
    if chosen is None:
        return None
    suspect, peer = (tuple(ends[place].tolist()) for place in chosen)
    return LinkPair(suspect=suspect, peer=peer, num_bytes=int(standing.num_bytes[pairs[chosen[0]]]))


def _is_of_device(verdict: Verdict) -> bool:
    return verdict.kind in _OF_DEVICES


def _is_of_group(verdict: Verdict) -> bool:
    """Whether it may be any of several links."""
    return len(verdict.culprits) > 2


def _concerns(verdict: Verdict, ranks: Ranks) -> bool:
    """Whether a device or a link is what a verdict is about, or a part of it: an endpoint has all links of its rank."""
    whose = verdict.ranks
    if _is_of_device(verdict) or len(ranks) == 1:
        return _is_of_device(verdict) and whose == ranks
    return whose[0] in ranks if len(whose) == 1 else set(ranks) <= set(whose)


def _explains(report: ProbeReport, verdict: Verdict) -> bool:
    """Whether a report is about a part of what a verdict calls slow, and was asked for late enough."""
    return _concerns(verdict, report.ranks) and report.iteration >= verdict.first_iteration
