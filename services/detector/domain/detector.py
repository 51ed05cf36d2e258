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
from services.detector.domain.compute_watch import ComputeWatch
from services.detector.domain.culprits import Culprits
from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.frame_table import FrameTable, table_of
from services.detector.domain.hang_watch import HangWatch
from services.detector.domain.job_profile import JobProfile
from services.detector.domain.kind import Look
from services.detector.domain.kind_board import KindBoard, kind_verdict
from services.detector.domain.link_watch import LinkFinding, LinkWatch
from services.detector.domain.loss_watch import LossWatch
from services.detector.domain.observation import FrameObservation, LivenessObservation, Observation
from services.detector.domain.plain_pass import PlainPass
from services.detector.domain.probing import Probing
from services.detector.domain.process_watch import ProcessFinding, ProcessWatch
from services.detector.domain.suspicion import Suspicion
from services.detector.domain.verdict import Profile, RankThroughputs, Verdict

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Finding = Verdict | Profile | Suspicion

PROFILE_EVERY = 5


class JobDetector:
    """Watches one job.

    Args:
        job_id: The job.
        iterations_per_false_alarm: Iterations of a healthy job per slow verdict that the operator puts up with.
    """

    def __init__(self, job_id: str, *, iterations_per_false_alarm: float = 100_000.0) -> None:
        self.job_id = job_id
        self._compute = ComputeWatch(iterations_per_false_alarm=iterations_per_false_alarm)
        self._bank = self._compute.health.bank
        self._iterations_per_false_alarm = iterations_per_false_alarm
        self._links: LinkWatch | None = None
        self._processes = ProcessWatch()
        self._culprits = Culprits(self._bank, self._processes)
        self._probing = Probing(job_id, self._culprits, self._compute.health)
        self._losses = LossWatch()
        self._kinds = KindBoard(iterations_per_false_alarm=iterations_per_false_alarm)
        self._profile = JobProfile()
        self._pass = PlainPass(self._compute, self._kinds, self._profile)
        self._hangs = HangWatch()
        self._last_sequence = -1
        self._last_at = 0.0
        self._iteration = -1
        self._num_frames = 0
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
        self._iteration = frame.iteration
        if frame.epoch != self._profile.epoch:
            self._begin_epoch(frame.epoch)
        found: list[Finding] = []
        if frame.missing_ranks:
            missing = self._processes.on_missing(frame.missing_ranks)
            found += [self._process_verdict(finding, frame.closed_at_unix_seconds) for finding in missing]
        if not len(frame):
            return found
        table = table_of(frame, self._layout, self._bank)
        rows = self._bank.located_rows if table.has_processes_of_before else self._locate(frame)
        for rank, incarnation, iteration in self._hangs.moving_again(frame):
            found.append(report.moving_again_verdict(frame, self._culprits.of(rank, incarnation), iteration))
        for loss in self._losses.observe(frame, table.ranges):
            found.append(report.loss_verdict(frame, loss, self._culprits.of_all(loss.ranks)))
        # A planned pause or a reshape disturbs everybody's iteration, also of those who do not name it.
        if table.is_planned:
            return found
        if frame.traffic is not None:
            found += [self._probing.link_verdict(frame, link) for link in self._watch_links(frame)]
        if self._links is not None:
            found += self._probing.suspect_link(frame, self._links)
        found += self._on_plain_frame(frame, table, rows)
        return found

    def _begin_epoch(self, epoch: int) -> None:
        self._profile.begin_epoch(epoch)
        self._compute.health.begin_epoch()
        if self._links is not None:
            self._links.begin_epoch()
        self._kinds.begin_epoch()

    def _on_plain_frame(self, frame: FrameObservation, table: FrameTable, rows: Ints) -> list[Finding]:
        """What devices, kinds and the profile have to say of a frame without marks."""
        layout, bank = self._layout, self._bank
        if layout is None or not table.has_layout_of_before:
            layout = self._layout = FrameLayout(frame)
        usable = layout.usable(frame, is_measured=table.is_measured)
        skipped = bank.take_skips(rows)
        if skipped is not None:
            usable = usable & ~skipped
        some = None if usable is layout.everybody or np.count_nonzero(usable) == len(usable) else usable
        if some is not None and not np.count_nonzero(some):
            return []
        self._num_frames += 1
        expected: Floats | None
        passed, iteration = None, (0.0, 0.0)
        if some is None and self._compute.has_learned:
            changes, expected, passed, iteration = self._pass.over(frame, table, layout, rows)
        else:
            changes, expected = self._compute.judge(frame.iteration, table.numbers, layout, rows, some)
        verdicts = []
        if changes and expected is not None:
            entry_of = {int(row): entry for entry, row in enumerate(rows)}
            for change in changes:
                entry = entry_of[change.row]
                verdicts.append(self._probing.health_verdict(frame, entry, change, float(expected[entry])))
        verdicts = self._kinds.revise(frame, verdicts)
        found: list[Finding] = [*verdicts]

        def look() -> Look:
            return self._kinds.look(
                frame,
                layout,
                usable=layout.everybody if some is None else some,
                expected_seconds=expected,
                bank=bank,
                rows=rows,
                ranges=table.ranges,
            )

        of_kinds = self._kinds.observe(look()) if passed is None else self._kinds.pass_over(passed, look)
        found += [kind_verdict(frame, one, self._culprits.of_all(one.ranks)) for one in of_kinds]
        found += self._probing.suspect(frame, rows, self._profile)
        if passed is not None:
            self._profile.take(frame, iteration, usable=None)
        else:
            healthy = ~bank.ill[rows] if np.count_nonzero(bank.ill) else None
            self._profile.observe(frame, table.numbers, layout, usable=some, healthy=healthy)
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

    def _throughputs(self, frame: FrameObservation, rows: Ints) -> RankThroughputs:
        throughputs, margins = self._compute.health.throughputs(rows)
        return RankThroughputs(frame.ranks, throughputs, margins)

    def to_state(self) -> dict[str, Any]:
        """Everything known of the job, as plain values and arrays."""
        links = {} if self._links is None else {"links": self._links.to_state()}
        return {
            **links,
            **self._hangs.to_state(),
            **self._compute.to_state(),
            "processes": self._processes.to_state(),
            "losses": self._losses.to_state(),
            "kinds": self._kinds.to_state(),
            **self._probing.to_state(),
            "profile": self._profile.to_state(),
            "last_sequence": self._last_sequence,
            "last_at": self._last_at,
            "iteration": self._iteration,
            "num_frames": self._num_frames,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._compute.restore(state)
        if "links" in state:
            self._links = LinkWatch(iterations_per_false_alarm=self._iterations_per_false_alarm)
            self._links.restore(state["links"])
        self._processes.restore(state["processes"])
        self._losses.restore(state["losses"])
        self._kinds.restore(state.get("kinds", {}))
        self._probing.restore(state)
        self._profile.restore(state["profile"])
        self._hangs.restore(state)
        self._last_sequence = state["last_sequence"]
        self._last_at = state["last_at"]
        self._iteration = state["iteration"]
        self._num_frames = state["num_frames"]
