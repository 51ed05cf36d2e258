"""One job's detector: observations in, verdicts and profiles out.

Deterministic: what comes out depends on the observations alone, in their order, and on nothing else, so a detector
that is restored from a snapshot and reads the rest again finds the same things under the same ids. Not thread-safe; a
job has one, and whoever owns it calls it from one thread.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain import report
from evenkeel.services.detector.domain.compute_watch import ComputeWatch
from evenkeel.services.detector.domain.culprits import Culprits
from evenkeel.services.detector.domain.device_levels import HealthChange
from evenkeel.services.detector.domain.frame_layout import FrameLayout
from evenkeel.services.detector.domain.frame_runs import frames_in_a_row
from evenkeel.services.detector.domain.frame_table import FrameBlock, FrameTable, block_of
from evenkeel.services.detector.domain.hang_watch import HangWatch
from evenkeel.services.detector.domain.job_links import JobLinks
from evenkeel.services.detector.domain.job_profile import JobProfile
from evenkeel.services.detector.domain.kind import Look
from evenkeel.services.detector.domain.kind_board import KindBoard, kind_verdict
from evenkeel.services.detector.domain.loss_watch import LossWatch
from evenkeel.services.detector.domain.observation import FrameObservation, LivenessObservation, Observation
from evenkeel.services.detector.domain.plain_pass import PROFILE_EVERY, PlainPass
from evenkeel.services.detector.domain.probing import Probing
from evenkeel.services.detector.domain.process_watch import ProcessFinding, ProcessWatch
from evenkeel.services.detector.domain.profile import Profile, RankThroughputs
from evenkeel.services.detector.domain.suspicion import Suspicion
from evenkeel.services.detector.domain.verdict import Verdict

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Finding = Verdict | Profile | Suspicion


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
        self._processes = ProcessWatch()
        self._culprits = Culprits(self._bank, self._processes)
        self._probing = Probing(job_id, self._culprits, self._compute.health)
        self._links = JobLinks(self._probing, iterations_per_false_alarm=iterations_per_false_alarm)
        self._losses = LossWatch()
        self._kinds = KindBoard(iterations_per_false_alarm=iterations_per_false_alarm)
        self._profile = JobProfile()
        self._pass = PlainPass(job_id, self._compute, self._losses, self._kinds, self._profile)
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
        return self.observe_all((observation,))

    def observe_all(self, observations: Sequence[Observation]) -> list[Finding]:
        """Takes the job's next observations: the same as one after the other, in less time where many are frames."""
        found: list[Finding] = []
        place = 0
        while place < len(observations):
            observation = observations[place]
            if self.has_taken(observation):
                place += 1
            elif isinstance(observation, FrameObservation):
                frames = frames_in_a_row(observation, observations, place)
                num_taken, of_frames = self._on_frames(frames)
                self._seen(frames[num_taken - 1])
                found += of_frames
                place += num_taken
            else:
                self._seen(observation)
                was_finished = self.finished
                found += self._on_liveness(observation)
                if self.finished and not was_finished:
                    found.append(self._last_profile())
                place += 1
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

    def _on_frames(self, frames: Sequence[FrameObservation]) -> tuple[int, list[Finding]]:
        """Takes the first of some frames in a row, and as many of the others as are plain like that."""
        frame = frames[0]
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
            return 1, found
        block = block_of(frames, self._layout, self._bank)
        num_taken = 0
        while num_taken < block.num_alike and self._is_plain_time():
            num_passed = self._pass_over(frames, block, num_taken, found)
            if not num_passed:
                break
            num_taken += num_passed
        if num_taken:
            self._iteration = frames[num_taken - 1].iteration
            return num_taken, found
        return 1, found + self._on_other_frame(frame, block.table(0))

    def _is_plain_time(self) -> bool:
        """Nobody has to see a frame beside those for whom the compiled loop stands in."""
        layout = self._layout
        return (
            layout is not None
            and layout.all_at_work
            and self._compute.has_learned
            and not self._hangs.is_anybody_hung
            and not self._bank.may_skip()
        )

    def _pass_over(
        self, frames: Sequence[FrameObservation], block: FrameBlock, first: int, found: list[Finding]
    ) -> int:
        """Takes frames that are alike from the first one on, until one has something to tell; returns how many."""
        layout, rows = self._layout, self._bank.located_rows
        assert layout is not None
        num_whole, stopped, profiles = self._pass.over(
            frames,
            block,
            layout,
            rows,
            first=first,
            num_to_profile=PROFILE_EVERY - self._num_frames % PROFILE_EVERY,
            asks_from=self._probing.next_iteration,
        )
        num_taken = num_whole + (stopped is not None)
        self._num_frames += num_taken
        if self._links.have_nothing_to_say(frames[first : first + num_taken]):
            found += map(self._told, profiles.values())
        else:
            for place in range(first, first + num_taken):
                found += self._links.observe(frames[place])
                if place in profiles:
                    found.append(self._told(profiles[place]))
        if stopped is not None:
            frame = frames[first + num_whole]
            verdicts = self._on_changes(frame, rows, stopped.changes, stopped.expected_seconds)
            found += verdicts
            passed, expected, table = stopped.passed, stopped.expected_seconds, block.table(first + num_whole)

            def look() -> Look:
                return self._look(frame, table, layout, layout.everybody, expected, rows)

            of_kinds = self._kinds.observe(look()) if passed is None else self._kinds.pass_over(passed, look)
            found += [kind_verdict(frame, one, self._culprits.of_all(one.ranks)) for one in of_kinds]
            found += self._probing.suspect(frame, rows, self._profile)
            if passed is not None:
                self._profile.take(frame, stopped.iteration, usable=None)
            else:
                self._observe_profile(frame, table.numbers, layout, rows, None)
            found += self._profile_after(frame, rows, verdicts)
        return num_taken

    def _on_other_frame(self, frame: FrameObservation, table: FrameTable) -> list[Finding]:
        """What everybody has to say of a frame that is not plain, one after the other."""
        found: list[Finding] = []
        rows = self._bank.located_rows if table.has_processes_of_before else self._locate(frame)
        for rank, incarnation, iteration in self._hangs.moving_again(frame):
            found.append(report.moving_again_verdict(frame, self._culprits.of(rank, incarnation), iteration))
        of_losses = self._losses.observe(frame, table.ranges)
        found += [report.loss_verdict(frame, loss, self._culprits.of_all(loss.ranks)) for loss in of_losses]
        # A planned pause or a reshape disturbs everybody's iteration, also of those who do not name it.
        if table.is_planned:
            return found
        found += self._links.observe(frame)
        found += self._on_unmarked_frame(frame, table, rows)
        return found

    def _go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before, as after a restart from a checkpoint."""
        self._bank.go_back(iteration)
        self._links.go_back(iteration)
        self._kinds.go_back(iteration)
        self._probing.go_back(iteration)

    def _begin_epoch(self, epoch: int) -> None:
        self._profile.begin_epoch(epoch)
        self._compute.health.begin_epoch()
        self._links.begin_epoch()
        self._kinds.begin_epoch()

    def _on_unmarked_frame(self, frame: FrameObservation, table: FrameTable, rows: Ints) -> list[Finding]:
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
        changes, expected = self._compute.judge(frame.iteration, table.numbers, layout, rows, some)
        verdicts = self._on_changes(frame, rows, changes, expected)
        found: list[Finding] = [*verdicts]
        usable = layout.everybody if some is None else some
        of_kinds = self._kinds.observe(self._look(frame, table, layout, usable, expected, rows))
        found += [kind_verdict(frame, one, self._culprits.of_all(one.ranks)) for one in of_kinds]
        found += self._probing.suspect(frame, rows, self._profile)
        self._observe_profile(frame, table.numbers, layout, rows, some)
        return found + self._profile_after(frame, rows, verdicts)

    def _on_changes(
        self, frame: FrameObservation, rows: Ints, changes: Sequence[HealthChange], expected: Floats | None
    ) -> list[Verdict]:
        """What is to be published of devices whose throughput changed."""
        verdicts = []
        if changes and expected is not None:
            entry_of = {int(row): entry for entry, row in enumerate(rows)}
            for change in changes:
                entry = entry_of[change.row]
                verdicts.append(self._probing.health_verdict(frame, entry, change, float(expected[entry])))
        return self._kinds.revise(frame, verdicts)

    def _look(
        self,
        frame: FrameObservation,
        table: FrameTable,
        layout: FrameLayout,
        usable: Bools,
        expected: Floats | None,
        rows: Ints,
    ) -> Look:
        """What kinds see of a frame."""
        return self._kinds.look(
            frame, layout, usable=usable, expected_seconds=expected, bank=self._bank, rows=rows, ranges=table.ranges
        )

    def _observe_profile(
        self, frame: FrameObservation, numbers: Floats, layout: FrameLayout, rows: Ints, usable: Bools | None
    ) -> None:
        healthy = ~self._bank.ill[rows] if np.count_nonzero(self._bank.ill) else None
        self._profile.observe(frame, numbers, layout, usable=usable, healthy=healthy)

    def _profile_after(self, frame: FrameObservation, rows: Ints, verdicts: Sequence[Verdict]) -> list[Finding]:
        """The profile after a frame that it has taken, where it is to be told."""
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

    def _throughputs(self, frame: FrameObservation, rows: Ints) -> RankThroughputs:
        throughputs, margins = self._compute.health.throughputs(rows)
        return RankThroughputs(frame.ranks, throughputs, margins)

    def to_state(self) -> dict[str, Any]:
        """Everything known of the job, as plain values and arrays."""
        return {
            **self._links.to_state(),
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
        self._links.restore(state)
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
