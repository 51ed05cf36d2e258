"""One job's detector: observations in, verdicts and profiles out.

Deterministic: what comes out depends on the observations alone, in their order, and on nothing else, so a detector
that is restored from a snapshot and reads the rest again finds the same things under the same ids. Not thread-safe; a
job has one, and whoever owns it calls it from one thread.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain import report
from services.detector.domain.device_health import QUIET, DeviceHealth
from services.detector.domain.device_levels import HealthChange
from services.detector.domain.device_offsets import BASELINE_AFTER_RESHAPE, BASELINE_OBSERVATIONS
from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.hang_watch import HangWatch
from services.detector.domain.job_profile import JobProfile
from services.detector.domain.kind_board import KindBoard, kind_verdict
from services.detector.domain.link_report import link_probe_verdict, link_verdict
from services.detector.domain.link_suspicion import LinkDesk, LinkProbeReport
from services.detector.domain.link_watch import LinkFinding, LinkWatch
from services.detector.domain.loss_watch import LossWatch
from services.detector.domain.middle import median
from services.detector.domain.observation import FrameObservation, LivenessObservation, Observation
from services.detector.domain.process_watch import ProcessFinding, ProcessWatch
from services.detector.domain.reported import ranges_of
from services.detector.domain.suspicion import SUSPECT_AT, Accusation, ProbeReport, Standing, Suspicion, SuspicionDesk
from services.detector.domain.verdict import Culprit, Profile, RankThroughput, RankThroughputs, Verdict
from services.detector.domain.workload import WorkExpectation, compare

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Finding = Verdict | Profile | Suspicion

PROFILE_EVERY = 5
_FRAMES_TO_LEARN = 3
_SKIPPED_AT_START = 2
_SKIPPED_BY_REPLACEMENT = 1


class JobDetector:
    """Watches one job.

    Args:
        job_id: The job.
        iterations_per_false_alarm: Iterations of a healthy job per slow verdict that the operator puts up with.
    """

    def __init__(self, job_id: str, *, iterations_per_false_alarm: float = 100_000.0) -> None:
        self.job_id = job_id
        self._expectation = WorkExpectation()
        self._health = DeviceHealth(iterations_per_false_alarm=iterations_per_false_alarm)
        self._iterations_per_false_alarm = iterations_per_false_alarm
        self._links: LinkWatch | None = None
        self._processes = ProcessWatch()
        self._losses = LossWatch()
        self._kinds = KindBoard(iterations_per_false_alarm=iterations_per_false_alarm)
        self._desk = SuspicionDesk()
        self._link_desk = LinkDesk()
        self._profile = JobProfile()
        self._hangs = HangWatch()
        self._last_sequence = -1
        self._last_at = 0.0
        self._iteration = -1
        self._num_frames = 0
        self._known_rows: Ints | None = None
        self._layout: FrameLayout | None = None

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
        self._last_sequence, self._last_at = observation.sequence, max(observation.at_unix_seconds, self._last_at)
        if isinstance(observation, FrameObservation):
            return self._on_frame(observation)
        was_finished, found = self.finished, self._on_liveness(observation)
        return [*found, self._last_profile()] if self.finished and not was_finished else [*found]

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
            found += self._probed(liveness.event.probe, liveness.at_unix_seconds)
        hangs = self._hangs.observe(
            liveness.progress,
            is_dead=self._processes.is_dead,
            iteration_seconds=self._profile.iteration_seconds,
            epoch=self._profile.epoch,
        )
        for hang in hangs:
            culprit = self._culprit(hang.rank, hang.incarnation)
            found.append(report.hang_verdict(self.job_id, hang, culprit, liveness.at_unix_seconds))
        return found

    def _probed(self, probe: ProbeReport | LinkProbeReport, at_unix_seconds: float) -> list[Verdict]:
        """A probe's report: evidence for a verdict to come, or for one that was given before it arrived."""
        if isinstance(probe, LinkProbeReport):
            late = self._link_desk.take(probe)
            if late is None:
                return []
            accused, shown = late
            culprits = tuple(self._culprit(rank, None) for rank in accused.ranks)
            return [link_probe_verdict(self.job_id, shown, accused, culprits, at_unix_seconds)]
        accusation, row = self._desk.take(probe), self._health.bank.row_of(probe.rank)
        if accusation is None or row is None or not bool(self._health.bank.ill[row]):
            return []
        throughputs, margins = self._health.throughputs(np.array([row]))
        now = RankThroughput(rank=probe.rank, throughput=float(throughputs[0]), margin=float(margins[0]))
        culprit = self._culprit(probe.rank, probe.incarnation)
        return [report.probe_verdict(self.job_id, probe, accusation, now, culprit, at_unix_seconds)]

    def _suspect(self, frame: FrameObservation, rows: Ints) -> list[Suspicion]:
        if self._health.calm(rows, SUSPECT_AT) or not self._affords_device_probe(frame.iteration):
            return []
        ill = self._health.bank.ill[rows]
        evidence = self._health.evidence(rows)
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
            seconds_per_flop=self._profile.seconds_per_flop if bool(frame.has_flops.all()) else float("nan"),
        )
        return [] if suspicion is None else [suspicion]

    def _suspect_link(self, frame: FrameObservation, links: LinkWatch) -> list[Suspicion]:
        # Not after those of devices: one that noise makes suspicious again and again would leave links none.
        if not self._link_desk.is_due(frame.iteration):
            return []
        standing = links.standing()
        if standing is None:
            return []
        suspicion = self._link_desk.consider(
            self.job_id,
            standing,
            incarnation_of=self._incarnation_of,
            node_of=lambda rank: self._culprit(rank, None).node,
            iteration=frame.iteration,
            at_unix_seconds=frame.closed_at_unix_seconds,
        )
        return [] if suspicion is None else [suspicion]

    def _affords_device_probe(self, iteration: int) -> bool:
        """Devices wait for probes of links, too: never two kinds at a time."""
        return self._desk.is_due(iteration) and self._link_desk.is_due(iteration)

    def _on_frame(self, frame: FrameObservation) -> list[Finding]:
        self._iteration = frame.iteration
        if frame.epoch != self._profile.epoch:
            self._profile.begin_epoch(frame.epoch)
            self._health.begin_epoch()
            if self._links is not None:
                self._links.begin_epoch()
            self._kinds.begin_epoch()
        found: list[Finding] = []
        if frame.missing_ranks:
            missing = self._processes.on_missing(frame.missing_ranks)
            found += [self._process_verdict(finding, frame.closed_at_unix_seconds) for finding in missing]
        if not len(frame):
            return found
        rows = self._locate(frame)
        for rank, incarnation, iteration in self._hangs.moving_again(frame):
            found.append(report.moving_again_verdict(frame, self._culprit(rank, incarnation), iteration))
        ranges = ranges_of(frame)
        for loss in self._losses.observe(frame, ranges):
            culprits = tuple(self._culprit(rank, None) for rank in loss.ranks)
            found.append(report.loss_verdict(frame, loss, culprits))
        # A planned pause or a reshape disturbs everybody's iteration, also of those who do not name it.
        if np.count_nonzero(frame.planned):
            return found
        if frame.traffic is not None:
            found += [self._link_verdict(frame, link) for link in self._watch_links(frame)]
        if self._links is not None:
            found += self._suspect_link(frame, self._links)
        layout = self._layout = FrameLayout.of(frame, self._layout)
        usable, bank = layout.usable(frame), self._health.bank
        skipped = bank.take_skips(rows)
        if skipped is not None:
            usable = usable & ~skipped
        every = usable is layout.everybody or np.count_nonzero(usable) == len(usable)
        if every:
            usable = layout.everybody
        elif not np.count_nonzero(usable):
            return found
        self._num_frames += 1
        learned = self._expectation.num_learned >= _FRAMES_TO_LEARN
        expected = self._expectation.expect(frame) if learned else None
        verdicts = self._kinds.revise(frame, self._judge(frame, layout, rows, None if every else usable, expected))
        found += verdicts
        of_kinds = self._kinds.observe(
            frame, layout, usable=usable, expected_seconds=expected, bank=bank, rows=rows, ranges=ranges
        )
        for one in of_kinds:
            found.append(kind_verdict(frame, one, tuple(self._culprit(rank, None) for rank in one.ranks)))
        found += self._suspect(frame, rows)
        healthy = ~bank.ill[rows] if np.count_nonzero(bank.ill) else None
        self._profile.observe(frame, layout, usable=None if every else usable, healthy=healthy)
        if verdicts:
            first = max(verdict.first_iteration for verdict in verdicts)
            self._profile.devices_changed(first, max(1, frame.iteration - first + 1))
        if verdicts or self._num_frames % PROFILE_EVERY == 0 or self._profile.num_frames == 1:
            profile = self._profile.profile(self.job_id, frame.iteration, self._throughputs(frame, rows))
            if profile is not None:
                found.append(replace(profile, ended=True) if self.finished else profile)
        return found

    def _watch_links(self, frame: FrameObservation) -> list[LinkFinding]:
        """What the frame says of links; a job whose ranks measure no transfers keeps nothing of them."""
        if self._links is None:
            self._links = LinkWatch(iterations_per_false_alarm=self._iterations_per_false_alarm)
            self._links.begin_epoch()
        return self._links.observe(frame)

    def _link_verdict(self, frame: FrameObservation, finding: LinkFinding) -> Verdict:
        probe = self._link_desk.report_on(
            finding.ranks, incarnation_of=self._incarnation_of, since_iteration=finding.first_iteration
        )
        culprits = tuple(self._culprit(rank, None) for rank in finding.ranks)
        verdict = link_verdict(frame, finding, culprits, None if finding.recovered else probe)
        self._link_desk.told(verdict, recovered=finding.recovered, probed=probe is not None)
        return verdict

    def _incarnation_of(self, rank: int) -> int:
        return self._culprit(rank, None).incarnation

    def _judge(
        self, frame: FrameObservation, layout: FrameLayout, rows: Ints, usable: Bools | None, expected: Floats | None
    ) -> list[Verdict]:
        """Compares a plain frame with what was expected of its usable entries (None: of all), then learns it."""
        if expected is None:
            self._expectation.learn(frame, usable, None)
            return []
        told, work_keys = rows, layout.work_keys
        if usable is not None:
            # Of the others nothing is looked at.
            seconds = np.where(usable, frame.compute_seconds, expected)
            told, work_keys = rows[usable], work_keys[usable]
            log_ratios = np.empty(len(frame))
            apart = compare(seconds, expected, log_ratios)
            known = log_ratios[usable]
        else:
            log_ratios, apart = self._expectation.compared(frame)
            known = log_ratios
        changes = self._health.observe(frame.iteration, told, known, work_keys)
        entry_of = {int(row): entry for entry, row in enumerate(rows)} if changes else {}
        verdicts = [
            self._health_verdict(frame, entry_of[change.row], change, float(expected[entry_of[change.row]]))
            for change in changes
        ]
        reach = 5 * self._health.noise.scale + 0.1
        if usable is None and apart < reach and self._health.calm(rows, QUIET):
            self._expectation.learn(frame, None, expected)
            return verdicts
        plain = self._health.quiet(rows) & (np.abs(log_ratios - median(known)) < reach)
        self._expectation.learn(frame, plain if usable is None else plain & usable, expected)
        return verdicts

    def _health_verdict(
        self, frame: FrameObservation, entry: int, change: HealthChange, expected_seconds: float
    ) -> Verdict:
        culprit = self._culprit(int(frame.ranks[entry]), None)
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

    def _locate(self, frame: FrameObservation) -> Ints:
        started = self._expectation.num_learned >= _FRAMES_TO_LEARN
        rows = self._health.bank.locate(
            frame,
            num_to_baseline=BASELINE_AFTER_RESHAPE if started else BASELINE_OBSERVATIONS,
            num_to_skip=_SKIPPED_BY_REPLACEMENT if started else _SKIPPED_AT_START,
        )
        if rows is not self._known_rows:
            self._known_rows = rows
            self._hangs.members_are((*frame.ranks.tolist(), *frame.missing_ranks))
            for rank, incarnation in zip(frame.ranks.tolist(), frame.incarnations.tolist(), strict=True):
                self._processes.seen(rank, incarnation)
        return rows

    def _process_verdict(self, finding: ProcessFinding, at_unix_seconds: float) -> Verdict:
        if not finding.rejoined:
            self._hangs.died(finding.rank)
        culprit = self._culprit(finding.rank, finding.incarnation)
        return report.process_verdict(self.job_id, finding, culprit, self._iteration, at_unix_seconds)

    def _culprit(self, rank: int, incarnation: int | None) -> Culprit:
        bank = self._health.bank
        row = bank.row_of(rank)
        if row is None or (incarnation is not None and bank.incarnation[row] != incarnation):
            node, device = self._processes.place(rank, incarnation or 0)
            return Culprit(rank=rank, incarnation=incarnation or 0, node=node, device=device)
        known = int(bank.incarnation[row])
        return Culprit(rank=rank, incarnation=known, node=bank.nodes[row], device=bank.devices[row])

    def _throughputs(self, frame: FrameObservation, rows: Ints) -> RankThroughputs:
        throughputs, margins = self._health.throughputs(rows)
        return RankThroughputs(frame.ranks, throughputs, margins)

    def to_state(self) -> dict[str, Any]:
        """Everything known of the job, as plain values and arrays."""
        links = {} if self._links is None else {"links": self._links.to_state()}
        return (
            links
            | self._hangs.to_state()
            | {
                "expectation": self._expectation.to_state(),
                "health": self._health.to_state(),
                "processes": self._processes.to_state(),
                "losses": self._losses.to_state(),
                "kinds": self._kinds.to_state(),
                "desk": self._desk.to_state(),
                "link_desk": self._link_desk.to_state(),
                "profile": self._profile.to_state(),
                "last_sequence": self._last_sequence,
                "last_at": self._last_at,
                "iteration": self._iteration,
                "num_frames": self._num_frames,
            }
        )

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._expectation.restore(state["expectation"])
        self._health.restore(state["health"])
        if "links" in state:
            self._links = LinkWatch(iterations_per_false_alarm=self._iterations_per_false_alarm)
            self._links.restore(state["links"])
        self._processes.restore(state["processes"])
        self._losses.restore(state["losses"])
        self._kinds.restore(state.get("kinds", {}))
        if "desk" in state:
            self._desk.restore(state["desk"])
        if "link_desk" in state:
            self._link_desk.restore(state["link_desk"])
        self._profile.restore(state["profile"])
        self._hangs.restore(state)
        self._last_sequence = state["last_sequence"]
        self._last_at = state["last_at"]
        self._iteration = state["iteration"]
        self._num_frames = state["num_frames"]
        self._known_rows = None
