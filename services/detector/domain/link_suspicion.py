"""Which link to probe, beside which, and what the probes said. Pure.

What :mod:`suspicion` is for devices: a link is a suspect when its test has gathered half of the evidence that it takes,
or when it was just called slow without a probe, by itself or as one of its endpoint's. Probes decide nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.suspicion import ITERATIONS_BETWEEN_PROBES, SuspectedLink, Suspicion, choose
from services.detector.domain.verdict import Verdict

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Ends = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbeReport:
    """What a probe of links took, seconds of the shortest way there and back.

    Attributes:
        ends: Ranks of the suspected link, ascending.
        incarnations: Their processes.
        peer_ends: Ranks of the healthy one.
        num_bytes: Bytes of a transfer.
        seconds: Over the suspected link.
        peer_seconds: Over the healthy one, at the same time.
        iteration: Iteration at which the probe was asked for.
    """

    ends: Ends
    incarnations: Ends
    peer_ends: Ends
    num_bytes: int
    seconds: float
    peer_seconds: float
    iteration: int


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
    """

    ends: Ints
    evidence: Floats
    ill: Bools
    classes: Ints
    faults: Ints
    num_bytes: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAccusation:
    """The newest verdict about an endpoint, a link or a group, as far as a probe that comes later needs it."""

    ranks: tuple[int, ...]
    first_iteration: int
    throughput: float
    margin: float
    confidence: float

    def concerns(self, ends: Ends) -> bool:
        """Whether a link is part of what is accused."""
        return self.ranks[0] in ends if len(self.ranks) == 1 else set(ends) <= set(self.ranks)


class LinkDesk:
    """Asks for probes of links, sparingly, and keeps their reports."""

    def __init__(self) -> None:
        self._asked_at = -ITERATIONS_BETWEEN_PROBES
        self._asked: dict[Ends, Ends] = {}
        self._accused: list[LinkAccusation] = []
        self._reports: dict[Ends, LinkProbeReport] = {}

    def is_due(self, iteration: int) -> bool:
        """Whether the job can afford another probe after those of links."""
        return iteration - self._asked_at >= ITERATIONS_BETWEEN_PROBES

    def consider(
        self,
        job_id: str,
        standing: LinkStanding,
        *,
        incarnation_of: Callable[[int], int],
        iteration: int,
        at_unix_seconds: float,
    ) -> Suspicion | None:
        """The question that this iteration raises, if it raises one; ask only when :meth:`is_due`.

        Args:
            job_id: The job.
            standing: After the iteration's tests.
            incarnation_of: The process of each rank.
            iteration: The iteration.
            at_unix_seconds: Its time, on the clock of the data.
        """
        asked = np.zeros(len(standing.ends), dtype=np.bool_)
        for row in np.flatnonzero(standing.ill).tolist():
            ends = _ends(standing, row)
            asked[row] = self._asked.get(ends) == _processes(ends, incarnation_of)
        # One link of what was told to be slow is enough.
        asked |= np.isin(standing.faults, standing.faults[asked & (standing.faults >= 0)])

        def able(suspect: int) -> Bools:
            """All four ranks take part at the same time, and what is compared is alike."""
            apart = ~np.isin(standing.ends, standing.ends[suspect]).any(axis=1)
            found: Bools = apart & (standing.classes == standing.classes[suspect])
            return found

        chosen = choose(
            evidence=standing.evidence, ill=standing.ill, asked=asked, work_keys=standing.classes, able=able
        )
        if chosen is None:
            return None
        suspect, peer = (_ends(standing, row) for row in chosen)
        self._asked[suspect] = _processes(suspect, incarnation_of)
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
                num_bytes=int(standing.num_bytes[chosen[0]]),
            ),
        )

    def take(self, report: LinkProbeReport) -> LinkAccusation | None:
        """Keep a report; the newest of each link counts.

        Returns:
            The accusation it came too late for: that verdict is to be told again with it.
        """
        self._reports[report.ends] = report
        late = [one for one in self._accused if one.concerns(report.ends)]
        self._accused = [one for one in self._accused if one not in late]
        return late[-1] if late else None

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
        elif not probed:
            self._accused.append(accusation)

    def report_on(
        self, ranks: Sequence[int], *, incarnation_of: Callable[[int], int], since_iteration: int
    ) -> LinkProbeReport | None:
        """The newest report about a link of an endpoint, a link or a group, if it was asked for late enough."""
        whose = LinkAccusation(ranks=tuple(ranks), first_iteration=0, throughput=1.0, margin=0.0, confidence=0.0)
        known = [
            report
            for ends, report in self._reports.items()
            if whose.concerns(ends)
            and report.iteration >= since_iteration
            and report.incarnations == _processes(ends, incarnation_of)
        ]
        return max(known, key=lambda report: report.iteration, default=None)

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain values for a snapshot."""
        return {
            "asked_at": self._asked_at,
            "asked": [[*ends, *those] for ends, those in sorted(self._asked.items())],
            "accused": [asdict(one) for one in self._accused],
            "reports": [asdict(report) for _, report in sorted(self._reports.items())],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`to_state`."""
        self._asked_at = int(state["asked_at"])
        self._asked = {(low, high): (first, second) for low, high, first, second in state["asked"]}
        self._accused = [LinkAccusation(**{**one, "ranks": tuple(one["ranks"])}) for one in state["accused"]]
        reports = [
            LinkProbeReport(**{**one, **{name: tuple(one[name]) for name in ("ends", "incarnations", "peer_ends")}})
            for one in state["reports"]
        ]
        self._reports = {report.ends: report for report in reports}


def _ends(standing: LinkStanding, row: int) -> Ends:
    low, high = standing.ends[row].tolist()
    return low, high


def _processes(ends: Ends, incarnation_of: Callable[[int], int]) -> Ends:
    return incarnation_of(ends[0]), incarnation_of(ends[1])
