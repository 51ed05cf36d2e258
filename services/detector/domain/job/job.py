"""One job's detector: observations in, verdicts and profiles out.

Deterministic: what comes out depends on the observations alone, in their order, and on nothing else, so a detector
that is restored from a snapshot and reads the rest again finds the same things under the same ids. Not thread-safe; a
job has one, and whoever owns it calls it from one thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.contracts.topics import PROFILE_EVERY
from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.expectation.profile.job_profile import JobProfile
from evenkeel.services.detector.domain.expectation.profile.profile import Profile, RankThroughput
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation, LivenessObservation, Observation
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.services.detector.domain.job.compute_watch import ComputeWatch
from evenkeel.services.detector.domain.job.told import words as report
from evenkeel.services.detector.domain.job.told.link_words import link_verdict
from evenkeel.services.detector.domain.job.told.names import Culprits
from evenkeel.services.detector.domain.job.told.probe_words import told_again, with_probe
from evenkeel.services.detector.domain.kinds.board import KindBoard, kind_verdict
from evenkeel.services.detector.domain.kinds.kind import Look
from evenkeel.services.detector.domain.links.watch import LinkWatch
from evenkeel.services.detector.domain.memory.state import DERIVED, GIVEN
from evenkeel.services.detector.domain.probes.desk import ProbeDesk
from evenkeel.services.detector.domain.processes.hang_watch import HangWatch
from evenkeel.services.detector.domain.processes.life import ProcessFinding, ProcessWatch

Finding = Verdict | Profile | Suspicion


@dataclass(slots=True, eq=False)
class JobDetector:
    """Watches one job.

    Attributes:
        job_id: The job.
        iterations_per_false_alarm: Iterations of a healthy job per slow verdict that the operator puts up with.
    """

    job_id: str = field(metadata=GIVEN)
    iterations_per_false_alarm: float = field(default=100_000.0, kw_only=True, metadata=GIVEN)
    _compute: ComputeWatch = field(init=False)
    _processes: ProcessWatch = field(init=False, default_factory=ProcessWatch)
    _probes: ProbeDesk = field(init=False)
    _links: LinkWatch = field(init=False)
    _kinds: KindBoard = field(init=False)
    _profile: JobProfile = field(init=False, default_factory=JobProfile)
    _hangs: HangWatch = field(init=False, default_factory=HangWatch)
    _last_sequence: int = field(init=False, default=-1)
    _last_at: float = field(init=False, default=0.0)
    _iteration: int = field(init=False, default=-1)
    _num_frames: int = field(init=False, default=0)
    _culprits: Culprits = field(init=False, metadata=DERIVED)
    _layout: FrameLayout | None = field(init=False, default=None, metadata=DERIVED)

    def __post_init__(self) -> None:
        budget = self.iterations_per_false_alarm
        self._compute = ComputeWatch(iterations_per_false_alarm=budget)
        self._culprits = Culprits(self._compute.rows, self._processes)
        self._probes = ProbeDesk(self.job_id, self._culprits.incarnation_of, self._culprits.node_of)
        self._links = LinkWatch(iterations_per_false_alarm=budget)
        self._kinds = KindBoard(iterations_per_false_alarm=budget)

    @property
    def finished(self) -> bool:
        """Every process of the job ended as planned: nothing more is to come."""
        return self._processes.all_finished

    @property
    def iteration(self) -> int:
        """Newest iteration seen; -1 before the first."""
        return self._iteration

    def has_taken(self, observation: Observation) -> bool:
        """The observation, or one after it, was taken before."""
        # A telemetry service that starts over counts from 0 again, but its clock does not go back.
        return observation.sequence <= self._last_sequence and observation.at_unix_seconds <= self._last_at

    def observe(self, observation: Observation) -> list[Finding]:
        """Takes the job's next observation; one that was taken before changes nothing and finds nothing.

        Returns:
            What was found, in the order it should be published.
        """
        if self.has_taken(observation):
            return []
        self._last_sequence = observation.sequence
        self._last_at = max(observation.at_unix_seconds, self._last_at)
        if isinstance(observation, FrameObservation):
            return self._on_frame(observation)
        was_finished = self.finished
        found: list[Finding] = [*self._on_liveness(observation)]
        if self.finished and not was_finished:
            # Those who are away now are told that nothing more is to come; a late frame's profile tells it again.
            known = self._profile.profile(self.job_id, self._iteration, ())
            unknown = Profile(job_id=self.job_id, iteration=self._iteration, epoch=self._profile.epoch)
            found.append(replace(known or unknown, ended=True))
        return found

    def _on_liveness(self, liveness: LivenessObservation) -> list[Verdict]:
        at, event = liveness.at_unix_seconds, liveness.event
        findings = [] if event is None else self._processes.on_event(event)
        findings += self._processes.on_progress(at, liveness.progress)
        found = [self._process_verdict(finding, at) for finding in findings]
        if event is not None and event.probe is not None:
            found += self._told_again(event.probe, at)
        pace, epoch, is_dead = self._profile.iteration_seconds, self._profile.epoch, self._processes.is_dead
        for hang in self._hangs.observe(liveness.progress, is_dead=is_dead, iteration_seconds=pace, epoch=epoch):
            found.append(report.hang_verdict(self.job_id, hang, self._culprits.of(hang.rank, hang.incarnation), at))
        return found

    def _on_frame(self, frame: FrameObservation) -> list[Finding]:
        """What everybody has to say of a frame, one after the other."""
        if frame.iteration <= self._iteration:
            self._go_back(frame.iteration)
        self._iteration = frame.iteration
        if frame.epoch != self._profile.epoch:
            self._begin_epoch(frame.epoch)
        missing = self._processes.on_missing(frame.missing_ranks)
        found: list[Finding] = [self._process_verdict(one, frame.closed_at_unix_seconds) for one in missing]
        if not len(frame):
            return found
        if not self._compute.rows.are_of(frame):
            self._locate(frame)
        rows = self._compute.rows.located_rows
        if self._layout is None or not self._layout.is_of(frame):
            self._layout = FrameLayout(frame)
        for rank, incarnation, iteration in self._hangs.moving_again(frame):
            found.append(report.moving_again_verdict(frame, self._culprits.of(rank, incarnation), iteration))
        if not frame.is_planned:
            for link in self._links.observe(frame):
                verdict = link_verdict(frame, link, self._culprits.of_all(link.ranks))
                found.append(with_probe(verdict, self._probes.told(verdict)))
            if frame.iteration >= self._probes.next_link_iteration:
                found += self._probes.suspect_link(frame, self._links.standing())
        usable = self._usable(frame, rows)
        counts = bool(usable.any())
        verdicts, expected = self._judged(frame, rows, usable) if counts else ([], None)
        found += verdicts
        look = Look(
            frame=frame,
            layout=self._layout,
            usable=usable,
            expected_seconds=expected,
            residuals=self._compute.residuals(rows),
            ill=self._compute.ill[rows],
            limit=self._kinds.limit(len(frame)),
        )
        found += [kind_verdict(frame, one, self._culprits.of_all(one.ranks)) for one in self._kinds.observe(look)]
        if counts:
            found += self._suspect(look, rows)
            found += self._profiled(look, rows, verdicts)
        return found

    def _go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before, as after a restart from a checkpoint."""
        self._compute.scan.go_back(iteration)
        self._links.go_back(iteration)
        self._kinds.go_back(iteration)
        self._probes.go_back(iteration)

    def _begin_epoch(self, epoch: int) -> None:
        self._profile.begin_epoch(epoch)
        self._compute.rows.skip_next()
        self._links.begin_epoch()
        self._kinds.begin_epoch()

    def _usable(self, frame: FrameObservation, rows: Ints) -> Bools:
        """Entries of a frame whose times count."""
        if frame.is_planned:
            return np.zeros(len(frame), dtype=np.bool_)
        skipped = self._compute.rows.take_skips(rows)
        return frame.usable if skipped is None else frame.usable & ~skipped

    def _judged(self, frame: FrameObservation, rows: Ints, usable: Bools) -> tuple[list[Verdict], Floats | None]:
        """Whose throughput changed, and what the work of each entry should take; None while that is learned."""
        self._num_frames += 1
        changes, expected = self._compute.judge(frame, rows, usable)
        told: list[Verdict] = []
        if expected is not None and changes:
            entry_of = {row: entry for entry, row in enumerate(rows.tolist())}
            for change, entry in [(each, entry_of[each.device]) for each in changes if each.device in entry_of]:
                culprit = self._culprits.of(int(frame.ranks[entry]))
                verdict = report.health_verdict(frame, entry, change, float(expected[entry]), culprit)
                told.append(with_probe(verdict, self._probes.told(verdict)))
        return self._kinds.revise(frame, told), expected

    def _told_again(self, probe: ProbeReport, at_unix_seconds: float) -> list[Verdict]:
        """A probe's report: evidence for a verdict to come, or for one that was given before it arrived."""
        late = self._probes.take(probe)
        if late is None:
            return []
        verdict, shown = late
        if verdict.kind is VerdictKind.COMPUTE_SLOW:
            row = self._compute.rows.row_of(verdict.ranks[0])
            if row is None or not self._compute.ill[row]:
                return []
            (throughput,), (margin,) = self._compute.speeds(np.array([row]))
            verdict = replace(verdict, throughput=float(throughput), throughput_margin=float(margin))
        return [told_again(verdict, shown, self._culprits.of_all(verdict.ranks), at_unix_seconds)]

    def _suspect(self, look: Look, rows: Ints) -> list[Suspicion]:
        """The device of a plain frame to ask, if one is worth it."""
        frame, scan = look.frame, self._compute.scan
        if not scan.clocks or frame.iteration < self._probes.next_iteration:
            return []
        return self._probes.suspect(
            frame,
            evidence=scan.evidence[rows],
            ill=look.ill,
            seconds_per_flop=self._profile.seconds_per_flop if bool(frame.has_flops.all()) else float("nan"),
        )

    def _profiled(self, look: Look, rows: Ints, verdicts: Sequence[Verdict]) -> list[Finding]:
        """Takes a frame into the profile, and tells that where it is due."""
        frame = look.frame
        self._profile.observe(frame, look.layout, usable=look.usable, healthy=~look.ill)
        if verdicts:
            first = max(verdict.first_iteration for verdict in verdicts)
            self._profile.devices_changed(first, max(1, frame.iteration - first + 1))
        if verdicts or self._num_frames % PROFILE_EVERY == 0 or self._profile.num_frames == 1:
            columns = (column.tolist() for column in (frame.ranks, *self._compute.speeds(rows)))
            throughputs = tuple(map(RankThroughput._make, zip(*columns, strict=True)))
            profile = self._profile.profile(self.job_id, frame.iteration, throughputs)
            if profile is not None:
                return [replace(profile, ended=True) if self.finished else profile]
        return []

    def _locate(self, frame: FrameObservation) -> None:
        """Some processes are not those of the frame before."""
        self._compute.locate(frame)
        self._hangs.members_are((*frame.ranks.tolist(), *frame.missing_ranks))
        for rank, incarnation in zip(frame.ranks.tolist(), frame.incarnations.tolist(), strict=True):
            self._processes.seen(rank, incarnation)

    def _process_verdict(self, finding: ProcessFinding, at_unix_seconds: float) -> Verdict:
        if not finding.rejoined:
            self._hangs.died(finding.rank)
        culprit = self._culprits.of(finding.rank, finding.incarnation)
        return report.process_verdict(self.job_id, finding, culprit, self._iteration, at_unix_seconds)
