"""One job's detector: observations in, verdicts and profiles out.

Deterministic: what comes out depends on the observations alone, in their order, and on nothing else, so a detector
that is restored from a snapshot and reads the rest again finds the same things under the same ids. Not thread-safe; a
job has one, and whoever owns it calls it from one thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.expectation.profile.job_profile import JobProfile
from evenkeel.services.detector.domain.expectation.profile.profile import Profile, RankThroughput
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation, LivenessObservation, Observation
from evenkeel.services.detector.domain.job.compute_watch import ComputeWatch
from evenkeel.services.detector.domain.job.told import words as report
from evenkeel.services.detector.domain.job.told.names import Culprits
from evenkeel.services.detector.domain.job.told.probing import Probing
from evenkeel.services.detector.domain.kinds.board import KindBoard, kind_verdict
from evenkeel.services.detector.domain.kinds.kind import Look
from evenkeel.services.detector.domain.kinds.loss import LossWatch
from evenkeel.services.detector.domain.links.watch import LinkWatch
from evenkeel.services.detector.domain.memory.state import DERIVED, GIVEN
from evenkeel.services.detector.domain.probes.desk import Suspicion
from evenkeel.services.detector.domain.processes.hang_watch import HangWatch
from evenkeel.services.detector.domain.processes.life import ProcessFinding, ProcessWatch

Finding = Verdict | Profile | Suspicion

PROFILE_EVERY = 5
"""A profile is told in every so many frames without marks."""


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
    _probing: Probing = field(init=False)
    _links: LinkWatch = field(init=False)
    _losses: LossWatch = field(init=False, default_factory=LossWatch)
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
        self._probing = Probing(self.job_id, self._culprits, self._compute)
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
        found: list[Finding] = []
        if isinstance(observation, FrameObservation):
            found += self._on_frame(observation)
            self._seen(observation)
            return found
        was_finished = self.finished
        found += self._on_liveness(observation)
        self._seen(observation)
        if self.finished and not was_finished:
            found.append(self._last_profile())
        return found

    def _seen(self, observation: Observation) -> None:
        self._last_sequence = observation.sequence
        self._last_at = max(observation.at_unix_seconds, self._last_at)

    def _last_profile(self) -> Profile:
        """Tells those who are away now that nothing more is to come; a late frame's profile tells it again."""
        known = self._profile.profile(self.job_id, self._iteration, ())
        return replace(known or Profile.unknown(self.job_id, self._iteration, self._profile.epoch), ended=True)

    def _on_liveness(self, liveness: LivenessObservation) -> list[Verdict]:
        findings: list[ProcessFinding] = []
        if liveness.event is not None:
            findings += self._processes.on_event(liveness.event)
        findings += self._processes.on_progress(liveness.at_unix_seconds, liveness.progress)
        found = [self._process_verdict(finding, liveness.at_unix_seconds) for finding in findings]
        if liveness.event is not None and liveness.event.probe is not None:
            found += self._probing.take(liveness.event.probe, liveness.at_unix_seconds)
        hangs = self._hangs.observe(
            liveness.progress,
            is_dead=self._processes.is_dead,
            iteration_seconds=self._profile.iteration_seconds,
            epoch=self._profile.epoch,
        )
        for hang in hangs:
            culprit = self._culprits.of(hang.rank, hang.incarnation)
            found.append(report.hang_verdict(self.job_id, hang, culprit, liveness.at_unix_seconds))
        return found

    def _on_frame(self, frame: FrameObservation) -> list[Finding]:
        """What everybody has to say of a frame, one after the other."""
        if frame.iteration <= self._iteration:
            self._go_back(frame.iteration)
        self._iteration = frame.iteration
        if frame.epoch != self._profile.epoch:
            self._begin_epoch(frame.epoch)
        found: list[Finding] = []
        if frame.missing_ranks:
            missing = self._processes.on_missing(frame.missing_ranks)
            found += [self._process_verdict(finding, frame.closed_at_unix_seconds) for finding in missing]
        if not len(frame):
            return found
        of_devices = self._compute.rows
        rows = of_devices.located_rows if of_devices.are_of(frame) else self._locate(frame)
        if self._layout is None or not self._layout.is_of(frame):
            self._layout = FrameLayout(frame)
        for rank, incarnation, iteration in self._hangs.moving_again(frame):
            found.append(report.moving_again_verdict(frame, self._culprits.of(rank, incarnation), iteration))
        of_losses = self._losses.observe(frame)
        found += [report.loss_verdict(frame, loss, self._culprits.of_all(loss.ranks)) for loss in of_losses]
        if not frame.is_planned:
            found += [self._probing.link_verdict(frame, link) for link in self._links.observe(frame)]
            found += self._probing.suspect_link(frame, self._links)
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
            found += self._probing.suspect(frame, rows, self._profile)
            found += self._profiled(frame, self._layout, rows, usable, verdicts)
        return found

    def _go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before, as after a restart from a checkpoint."""
        self._compute.scan.go_back(iteration)
        self._links.go_back(iteration)
        self._kinds.go_back(iteration)
        self._probing.go_back(iteration)

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
            entry_of = {int(row): entry for entry, row in enumerate(rows)}
            of_changes = [(entry_of[change.device], change) for change in changes if change.device in entry_of]
            told += [self._probing.health_verdict(frame, at, change, float(expected[at])) for at, change in of_changes]
        return self._kinds.revise(frame, told), expected

    def _profiled(
        self,
        frame: FrameObservation,
        layout: FrameLayout,
        rows: Ints,
        usable: Bools,
        verdicts: Sequence[Verdict],
    ) -> list[Finding]:
        """Takes a frame into the profile, and tells that where it is due."""
        self._profile.observe(frame, layout, usable=usable, healthy=~self._compute.ill[rows])
        if verdicts:
            first = max(verdict.first_iteration for verdict in verdicts)
            self._profile.devices_changed(first, max(1, frame.iteration - first + 1))
        if verdicts or self._num_frames % PROFILE_EVERY == 0 or self._profile.num_frames == 1:
            profile = self._profile.profile(self.job_id, frame.iteration, self._throughputs(frame, rows))
            if profile is not None:
                return [self._told(profile)]
        return []

    def _told(self, profile: Profile) -> Profile:
        """A profile as it is published: that nothing more is to come, where everybody has finished."""
        return replace(profile, ended=True) if self.finished else profile

    def _locate(self, frame: FrameObservation) -> Ints:
        rows = self._compute.locate(frame)
        self._hangs.members_are((*frame.ranks.tolist(), *frame.missing_ranks))
        for rank, incarnation in zip(frame.ranks.tolist(), frame.incarnations.tolist(), strict=True):
            self._processes.seen(rank, incarnation)
        return rows

    def _process_verdict(self, finding: ProcessFinding, at_unix_seconds: float) -> Verdict:
        if not finding.rejoined:
            self._hangs.died(finding.rank)
        culprit = self._culprits.of(finding.rank, finding.incarnation)
        return report.process_verdict(self.job_id, finding, culprit, self._iteration, at_unix_seconds)

    def _throughputs(self, frame: FrameObservation, rows: Ints) -> tuple[RankThroughput, ...]:
        throughputs, margins = self._compute.speeds(rows)
        columns = frame.ranks.tolist(), throughputs.tolist(), margins.tolist()
        return tuple(map(RankThroughput._make, zip(*columns, strict=True)))
