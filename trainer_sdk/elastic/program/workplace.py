"""What a rank trains with: the groups, the program and the votes of one epoch after the other, and what they cost.

Training thread only.
"""

import math
import time

import torch

from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.peer_copies import PeerCopies
from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.gradients.step_vote import Outcome
from evenkeel.trainer_sdk.elastic.measure.link_probes import LinkProbes
from evenkeel.trainer_sdk.elastic.measure.report import iteration_measured
from evenkeel.trainer_sdk.elastic.measure.traffic import Traffic
from evenkeel.trainer_sdk.elastic.measure.wait_kind import BETWEEN_OPERATIONS, WaitKind
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.optimizer import clip_scale
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState
from evenkeel.trainer_sdk.elastic.state.transition import Arrival
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder
from evenkeel.trainer_sdk.groups.errors import Interrupted
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.peer_lines import PeerLines
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter
from evenkeel.trainer_sdk.launcher.processes.context import JOB_FINISHED, RankContext
from evenkeel.trainer_sdk.launcher.progress.progress_board import Note

_FAREWELL_SECONDS = 60.0


class Workplace:
    """One rank's.

    Args:
        config: Job.
        context: The rank's surroundings.

    Attributes:
        rendezvous: Where the job's ranks find one another.
        builder: Builds groups.
        groups: Those of the epoch in force, by name.
    """

    def __init__(self, config: TrainingConfig, context: RankContext) -> None:
        self._config, self._rank, self._mailbox = config, context.rank, context.mailbox
        self._emitter, self._progress, self._note = context.emitter, context.emitter.progress, context.note
        device = torch.device(config.device)
        self._dataset = Dataset(config, device)
        self._phases = Phases(context.device, self._progress, in_none=BETWEEN_OPERATIONS)
        self.rendezvous = Rendezvous(context.store_address, config.job_id)
        self._lines = PeerLines(self._rank, self.rendezvous, context.node_of)
        self._traffic = Traffic(self._rank, context.links or (None if self.rendezvous.loopback else Links()))
        self.builder = GroupBuilder(
            self._rank,
            self.rendezvous,
            device=device,
            waiter=Waiter(self._mailbox.interrupted, self._lines.lost),
            is_over=self.is_job_finished,
            widest=config.vote_width,
            progress=self._progress,
        )
        self._link_probes = LinkProbes(
            self._mailbox.probes, self._rank, context.links or Links(), device, self._progress, self.builder
        )
        self.groups: dict[str, Group] = {}
        self._runtime: EpochRuntime | None = None
        self._loss_part = self._norm_part = 0.0
        self._gradient_scale = 1.0
        self._job_finished = False

    # ---- an epoch

    def enter(self, arrival: Arrival) -> GradientSums:
        """An epoch begins, whose groups and slices are there; returns what gradients are summed in."""
        state, self.groups = arrival.state, arrival.groups
        runtime = self._runtime = EpochRuntime(
            self._config,
            self._dataset,
            self._rank,
            state,
            self.groups,
            self._phases,
            arrival.sums,
            arrival.salvaged,
        )
        self._phases.end_iteration()  # one that was broken off
        self._traffic.attach(state.layout, self.groups)
        self._lines.enter(state.epoch, self.groups.values())
        self._link_probes.enter(state.epoch, self.groups)
        return runtime.sums

    def leave(self) -> None:
        """Give the groups up, pending operations and all; returns at once."""
        groups, self.groups = self.groups, {}
        self._phases.give_up()
        self._lines.leave()
        self._link_probes.leave()
        self.builder.abandon(groups)

    # ---- an iteration

    def compute(self, iteration: int, copies: PeerCopies) -> None:
        """All of an iteration up to the reduced gradients, and to the copies of the state that it began with.

        Raises:
            WaitBroken: The rank should park; the sums tell what was done.
        """
        runtime = self._runtime
        assert runtime is not None, "a training rank has a runtime"
        self._progress.begin_iteration(iteration, runtime.epoch)
        self._link_probes.run()
        self._loss_part = runtime.run_iteration(iteration)
        self._norm_part = runtime.sums.squared_norm_part()
        if self._config.optimizer.max_gradient_norm is not None:
            # Before the vote: whoever voted can step alone after a failure, so it must know the scale.
            self._gradient_scale = clip_scale(self._config.optimizer, runtime.vote.gradient_norm(self._norm_part))
        self._phases.waits(WaitKind.VOTE, copies.partners, copies.finish)

    def vote(self, committed_epoch: int) -> Outcome:
        """Say that this rank holds the reduced gradients; see :meth:`StepVote.hold`."""
        assert self._runtime is not None, "a training rank has a runtime"
        vote = self._runtime.vote
        outcome = vote.hold(committed_epoch, self._loss_part, self._norm_part, self._link_probes.arm())
        self._link_probes.heard(outcome.armed)
        return outcome

    def step(self) -> None:
        """Apply the reduced gradients."""
        assert self._runtime is not None, "a rank that voted has a runtime"
        self._runtime.step(self._gradient_scale)

    def emit(self, iteration: int, outcome: Outcome | None, *, after_reshape: bool, checkpoint: bool) -> None:
        """Tell of a step that was just applied; ``outcome`` is None where its vote was not heard."""
        assert self._runtime is not None, "a rank that stepped has a runtime"
        loss = None if outcome is None else outcome.loss
        self._note(Note(iteration, self._runtime.epoch, math.nan if loss is None else loss, time.time()))
        measured = iteration_measured(
            self._runtime,
            self._phases.end_iteration(),
            self._traffic.take(),
            iteration=iteration,
            loss=loss,
            gradient_norm=None if outcome is None else outcome.gradient_norm,
            after_reshape=after_reshape,
            checkpoint=checkpoint,
        )
        self._emitter.emit_later(measured)

    # ---- the end

    def finish(self, state: ShardState) -> None:
        """Wait until the last step is applied everywhere: who left before would be a lost rank to its peers.

        Raises:
            WaitBroken: The rank should park.
        """
        self._progress.enter("finishing")
        try:
            self.rendezvous.meet(
                f"epoch/{state.epoch}/finished",
                self._rank,
                state.layout.ranks,
                state.steps_applied,
                # Who has left already cannot tell a new store that it was here.
                waiter=Waiter(lambda: self._mailbox.interrupted() or self.is_job_finished()),
                timeout_seconds=_FAREWELL_SECONDS,
                widest=self._config.vote_width,
            )
        except Interrupted:
            if not self._job_finished:
                raise
        self.rendezvous.announce(JOB_FINISHED, state.steps_applied)

    def is_job_finished(self) -> bool:
        """Whether somebody was in a complete farewell; once heard, it stays so."""
        self._job_finished = self._job_finished or self.rendezvous.heard(JOB_FINISHED)
        return self._job_finished
