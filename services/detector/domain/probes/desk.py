"""Whom to probe, and what the probes said. Pure.

A suspect is a device whose sequential test has gathered half of the evidence that it takes, or one that was just called
slow without a probe. Its probe runs beside a peer that did the same work. Probes decide nothing: the test keeps its
false-alarm budget whatever they say, and their figures stand in the verdict for a person to weigh.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport

SUSPECT_AT = 0.5
"""Of the evidence that a verdict takes."""

ITERATIONS_BETWEEN_PROBES = 20
"""A job pays for at most one probe in so many iterations, however noisy it is."""

USUAL_MATRIX = 256
"""For a job that does not say what its work costs."""

PROBE_SECONDS = 0.002
"""One product on a healthy device; a suspicion costs three, or the time of six on a device at half speed."""

SMALLEST_MATRIX, LARGEST_MATRIX = 64, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectedLink:
    """The other ends of two links; fields as in ``evenkeel.detector.v1.SuspectedLink``."""

    partner_rank: int
    partner_incarnation: int
    peer_partner_rank: int
    peer_partner_incarnation: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A question for the scheduler; fields as in ``evenkeel.detector.v1.Suspicion``."""

    job_id: str
    rank: int
    incarnation: int
    peer_rank: int
    peer_incarnation: int
    iteration: int
    at_unix_seconds: float
    matrix_size: int = 0
    link: SuspectedLink | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the devices of a frame stand in their tests; arrays over its rows.

    Attributes:
        ranks: Rank of each.
        incarnations: Its process.
        evidence: Evidence against it, as a part of what a verdict takes.
        ill: Called slow already.
        work_keys: Equal where devices do equal work.
    """

    ranks: npt.NDArray[np.int64]
    incarnations: npt.NDArray[np.int64]
    evidence: Floats
    ill: Bools
    work_keys: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """The newest verdict that calls a process slow, as far as a probe that comes later needs it."""

    incarnation: int
    first_iteration: int
    confidence: float


@dataclass(slots=True, eq=False)
class SuspicionDesk:
    """Asks for probes, sparingly, and keeps their reports."""

    _asked_at: int = -ITERATIONS_BETWEEN_PROBES
    _asked: dict[int, int] = field(default_factory=dict)
    _accused: dict[int, Accusation] = field(default_factory=dict)
    _reports: dict[int, ProbeReport] = field(default_factory=dict)

    @property
    def next_iteration(self) -> int:
        """The first iteration in which the job can afford another probe."""
        return self._asked_at + ITERATIONS_BETWEEN_PROBES

    def consider(
        self, job_id: str, standing: Standing, *, iteration: int, at_unix_seconds: float, seconds_per_flop: float
    ) -> Suspicion | None:
        """The question that this iteration raises, if it raises one; ask only from :attr:`next_iteration` on.

        Args:
            job_id: The job.
            standing: After the iteration's tests.
            iteration: The iteration.
            at_unix_seconds: Its time, on the clock of the data.
            seconds_per_flop: Of a healthy device, or NaN; it sets the size of the probe.
        """
        asked = np.zeros(len(standing.ranks), dtype=np.bool_)
        for row in np.flatnonzero(standing.ill).tolist():
            asked[row] = self._asked.get(int(standing.ranks[row])) == int(standing.incarnations[row])
        chosen = choose(evidence=standing.evidence, ill=standing.ill, asked=asked, work_keys=standing.work_keys)
        if chosen is None:
            return None
        suspect, peer = chosen
        self._asked_at = iteration
        self._asked[int(standing.ranks[suspect])] = int(standing.incarnations[suspect])
        return Suspicion(
            job_id=job_id,
            rank=int(standing.ranks[suspect]),
            incarnation=int(standing.incarnations[suspect]),
            peer_rank=int(standing.ranks[peer]),
            peer_incarnation=int(standing.incarnations[peer]),
            iteration=iteration,
            at_unix_seconds=at_unix_seconds,
            matrix_size=matrix_size_for(seconds_per_flop),
        )

    def take(self, report: ProbeReport) -> Accusation | None:
        """Keep a report; the newest of each rank counts.

        Returns:
            The accusation it came too late for: that verdict is to be told again with it.
        """
        self._reports[report.rank] = report
        accused = self._accused.get(report.rank)
        return accused if accused is not None and accused.incarnation == report.incarnation else None

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: later reports are of no use to it."""
        self._asked_at = min(self._asked_at, iteration)
        self._reports = {rank: one for rank, one in self._reports.items() if one.iteration < iteration}
        for rank, one in self._accused.items():
            self._accused[rank] = replace(one, first_iteration=min(one.first_iteration, iteration))

    def accuse(self, rank: int, accusation: Accusation) -> None:
        """A verdict calls this process slow."""
        self._accused[rank] = accusation

    def report_on(self, rank: int, incarnation: int, *, since_iteration: int) -> ProbeReport | None:
        """The newest report about a process, if it was asked for at or after ``since_iteration``."""
        report = self._reports.get(rank)
        if report is None or report.incarnation != incarnation or report.iteration < since_iteration:
            return None
        return report

    def recovered(self, ranks: Sequence[int]) -> None:
        """These devices are healthy again: what was said of them is history."""
        for rank in ranks:
            self._asked.pop(rank, None)
            self._accused.pop(rank, None)
            self._reports.pop(rank, None)


def matrix_size_for(seconds_per_flop: float) -> int:
    """Side of the matrices whose product takes ``PROBE_SECONDS`` on a healthy device; its speed may be NaN: unknown."""
    side = (PROBE_SECONDS / (2.0 * seconds_per_flop)) ** (1.0 / 3.0) if seconds_per_flop > 0.0 else USUAL_MATRIX
    return round(min(max(side, SMALLEST_MATRIX), LARGEST_MATRIX))


def choose(
    *,
    evidence: Floats,
    ill: Bools,
    asked: Bools,
    work_keys: Floats | npt.NDArray[np.int64],
    able: Callable[[int], Bools] | None = None,
) -> tuple[int, int] | None:
    """Whom to probe, and beside whom: entries of the arrays; None when nobody is a suspect, or none could stand beside.

    Args:
        evidence: Against each, as a part of what a verdict takes.
        ill: Called slow already; probed once, if that has not been.
        asked: That has been.
        work_keys: Equal where two do the same work.
        able: Who could stand beside a suspect; anybody else if None.
    """
    wanted = np.where(ill, np.where(asked, 0.0, 1.0), evidence)
    if not len(wanted) or float(wanted.max()) < SUSPECT_AT:
        return None
    suspect = int(np.argmax(wanted))
    healthy = ~ill & (evidence < SUSPECT_AT)
    if able is not None:
        healthy &= able(suspect)
    healthy[suspect] = False
    same = healthy & (work_keys == work_keys[suspect])
    # The least suspicious, of those that do the same work if there are any.
    beside = np.flatnonzero(same if same.any() else healthy)
    return (suspect, int(beside[np.argmin(evidence[beside])])) if len(beside) else None
