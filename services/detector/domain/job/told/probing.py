"""What is asked of devices and links under suspicion, and how the answers meet the verdicts about them.

Devices wait for probes of links, too: never two kinds at a time.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Ints
from evenkeel.services.detector.domain.expectation.profile.job_profile import JobProfile
from evenkeel.services.detector.domain.expectation.profile.profile import RankThroughput
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.probe_reports import LinkProbeReport, ProbeReport
from evenkeel.services.detector.domain.job.compute_watch import ComputeWatch
from evenkeel.services.detector.domain.job.told import words as report
from evenkeel.services.detector.domain.job.told.link_words import link_probe_verdict, link_verdict
from evenkeel.services.detector.domain.job.told.names import Culprits
from evenkeel.services.detector.domain.links.complaint import LinkFinding
from evenkeel.services.detector.domain.links.watch import LinkWatch
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.probes.desk import SUSPECT_AT, Accusation, Standing, Suspicion, SuspicionDesk
from evenkeel.services.detector.domain.probes.link_probes import LinkDesk
from evenkeel.services.detector.domain.scan.speed_change import SpeedChange


@dataclass(slots=True, eq=False)
class Probing:
    """The two desks of one job.

    Attributes:
        job_id: The job.
        culprits: Names its ranks.
        compute: Knows its devices.
    """

    job_id: str = field(metadata=GIVEN)
    culprits: Culprits = field(metadata=GIVEN)
    compute: ComputeWatch = field(metadata=GIVEN)
    _desk: SuspicionDesk = field(default_factory=SuspicionDesk)
    _link_desk: LinkDesk = field(default_factory=LinkDesk)

    def take(self, probe: ProbeReport | LinkProbeReport, at_unix_seconds: float) -> list[Verdict]:
        """A probe's report: evidence for a verdict to come, or for one that was given before it arrived."""
        if isinstance(probe, LinkProbeReport):
            late = self._link_desk.take(probe)
            if late is None:
                return []
            accused, shown = late
            culprits = self.culprits.of_all(accused.ranks)
            return [link_probe_verdict(self.job_id, shown, accused, culprits, at_unix_seconds)]
        accusation, row = self._desk.take(probe), self.compute.rows.row_of(probe.rank)
        if accusation is None or row is None or not bool(self.compute.ill[row]):
            return []
        throughputs, margins = self.compute.scan.speeds
        now = RankThroughput(rank=probe.rank, throughput=float(throughputs[row]), margin=float(margins[row]))
        culprit = self.culprits.of(probe.rank, probe.incarnation)
        return [report.probe_verdict(self.job_id, probe, accusation, now, culprit, at_unix_seconds)]

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before."""
        self._desk.go_back(iteration)
        self._link_desk.go_back(iteration)

    def suspect(self, frame: FrameObservation, rows: Ints, profile: JobProfile) -> list[Suspicion]:
        """The device of a frame to ask, if there is one worth it.

        Args:
            frame: A plain frame.
            rows: Row of each entry.
            profile: What the iterations before it are made of.
        """
        if not self.compute.scan.clocks or frame.iteration < self.next_iteration:
            return []
        ill, evidence = self.compute.ill[rows], self.compute.scan.evidence[rows]
        if not np.count_nonzero(ill) and np.maximum.reduce(evidence) < SUSPECT_AT:
            return []
        standing = Standing(
            ranks=frame.ranks,
            incarnations=frame.incarnations,
            evidence=evidence,
            ill=ill,
            work_keys=frame.work_keys,
        )
        suspicion = self._desk.consider(
            self.job_id,
            standing,
            iteration=frame.iteration,
            at_unix_seconds=frame.closed_at_unix_seconds,
            seconds_per_flop=profile.seconds_per_flop if bool(frame.has_flops.all()) else float("nan"),
        )
        return [] if suspicion is None else [suspicion]

    def suspect_link(self, frame: FrameObservation, links: LinkWatch) -> list[Suspicion]:
        """The link to ask, if there is one worth it."""
        # Not after those of devices: one that noise makes suspicious again and again would leave links none.
        if frame.iteration < self._link_desk.next_iteration:
            return []
        standing = links.standing()
        if standing is None:
            return []
        suspicion = self._link_desk.consider(
            self.job_id,
            standing,
            incarnation_of=self.culprits.incarnation_of,
            node_of=self.culprits.node_of,
            iteration=frame.iteration,
            at_unix_seconds=frame.closed_at_unix_seconds,
        )
        return [] if suspicion is None else [suspicion]

    @property
    def next_iteration(self) -> int:
        """The first iteration in which the job can afford to have a device asked."""
        return max(self._desk.next_iteration, self._link_desk.next_iteration)

    def link_verdict(self, frame: FrameObservation, finding: LinkFinding) -> Verdict:
        """The verdict about a link, with what its probe showed."""
        probe = self._link_desk.report_on(
            finding.ranks, incarnation_of=self.culprits.incarnation_of, since_iteration=finding.first_iteration
        )
        culprits = self.culprits.of_all(finding.ranks)
        verdict = link_verdict(frame, finding, culprits, None if finding.recovered else probe)
        self._link_desk.told(verdict, recovered=finding.recovered, probed=probe is not None)
        return verdict

    def health_verdict(
        self, frame: FrameObservation, entry: int, change: SpeedChange, expected_seconds: float
    ) -> Verdict:
        """The verdict about a device, with what its probe showed.

        Args:
            frame: The frame that decided.
            entry: Whose device.
            change: What changed.
            expected_seconds: What its work should take.
        """
        culprit = self.culprits.of(int(frame.ranks[entry]))
        first = change.first_iteration
        probe = self._desk.report_on(culprit.rank, culprit.incarnation, since_iteration=first)
        verdict = report.health_verdict(
            frame, entry, change, expected_seconds=expected_seconds, culprit=culprit, probe=probe
        )
        if change.recovered:
            self._desk.recovered((culprit.rank,))
        elif probe is None:
            accusation = Accusation(
                incarnation=culprit.incarnation, first_iteration=first, confidence=verdict.confidence
            )
            self._desk.accuse(culprit.rank, accusation)
        return verdict
