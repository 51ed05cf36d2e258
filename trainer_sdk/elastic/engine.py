"""The training loop of one rank: iterations, step votes, and the switch from one epoch to the next.

Everything here runs on the training thread. Control reaches it through the mailbox only, at three places: between the
slices of a wait (interrupt), at the step vote (a boundary that everybody carries), and while parked. What is decided
by whom is in docs/architecture.md, "How a plan is applied".
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.trainer_sdk.control.cycle import Action, RankCycle, Way
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.state import Commit
from evenkeel.trainer_sdk.devices.device import Device
from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.devices.matrix_probe import MatrixProbe
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.safekeeping import Safekeeping
from evenkeel.trainer_sdk.elastic.gradients.step_vote import StepVote
from evenkeel.trainer_sdk.elastic.measure.clock import Clock, WaitKind
from evenkeel.trainer_sdk.elastic.measure.link_probes import LinkProbes
from evenkeel.trainer_sdk.elastic.measure.report import iteration_measured
from evenkeel.trainer_sdk.elastic.measure.traffic import Traffic
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.optimizer import clip_scale
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.state.holdings import Holdings
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState
from evenkeel.trainer_sdk.elastic.state.transfers import MissingSliceError
from evenkeel.trainer_sdk.elastic.state.transition import Arrival, Transition
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.groups.building.builder import RESHAPING, GroupBuilder
from evenkeel.trainer_sdk.groups.errors import Interrupted, PeerLost
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.peer_lines import PeerLines
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter
from evenkeel.trainer_sdk.launcher.processes.context import JOB_FINISHED

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PARKED_POLL_SECONDS = 0.25
_FAREWELL_SECONDS = 60.0
_LAST_CHECKPOINT_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One applied optimizer step, for whoever listens in the process."""

    iteration: int
    epoch: int
    loss: float


class Engine:
    """One rank of an elastic job.

    Args:
        config: Job; the same on every rank.
        rank: This rank.
        incarnation: Which process of the rank this is.
        mailbox: Where plans arrive and states are reported.
        device: What to compute on.
        emitter: Where samples and progress go.
        store_address: ``host:port`` of the job's store, which no rank hosts.
        links: Emulated links between ranks; None = real ones, measured where ranks are on several machines.
        initial_layout: Layout of epoch 0; None for a process that joins later.
        node_of: Node of a rank, so that copies go to another one; None when it is not known.
        on_step: Called after each step of this rank, on the training thread.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        rank: int,
        incarnation: int,
        mailbox: Mailbox,
        device: Device,
        emitter: Emitter,
        store_address: str,
        initial_layout: Layout | None,
        links: Links | None = None,
        node_of: Callable[[int], str] | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self._config = config
        self._rank = rank
        self._incarnation = incarnation
        self._mailbox = mailbox
        self._emitter = emitter
        self._on_step = on_step
        self._initial_layout = initial_layout
        self._torch_device = torch.device(config.device)
        self._dataset = Dataset(config, self._torch_device)
        self._clock = Clock(device, emitter.progress)
        self._probe = MatrixProbe(device, config.device)
        self._rendezvous = Rendezvous(store_address, config.job_id)
        self._lines = PeerLines(rank, self._rendezvous, node_of)
        self._waiter = Waiter(mailbox.interrupted, self._lines.lost)
        self._traffic = Traffic(rank, links or (None if self._rendezvous.loopback else Links()))
        self._builder = GroupBuilder(
            rank,
            self._rendezvous,
            device=self._torch_device,
            waiter=self._waiter,
            is_over=self._is_job_finished,
            widest=config.vote_width,
            progress=emitter.progress,
        )
        self._link_probes = LinkProbes(
            mailbox.probes, rank, links or Links(), self._torch_device, emitter.progress, self._builder
        )
        self._safekeeping = Safekeeping(config, rank, node_of)
        self._copies = self._safekeeping.peers
        self._transition = Transition(config, rank, self._builder, self._safekeeping, emitter.progress)
        self._cycle = RankCycle(rank, incarnation, config.num_iterations)
        self._layout: Layout | None = None
        self._holdings = Holdings(rank, self._copies)
        self._runtime: EpochRuntime | None = None
        self._vote: StepVote | None = None
        self._groups: dict[str, Group] = {}
        self._gradient_scale = 1.0
        self._last_step_at = 0.0
        self._after_reshape = False
        self._job_finished = False

    @property
    def steps_applied(self) -> int:
        """Optimizer steps that this rank's state contains."""
        return self._cycle.steps_applied

    def run(self) -> None:
        """Train until the job's last iteration, or until the rank is evicted."""
        self._publish()
        if self._initial_layout is not None:
            self._guarded(self._begin)
        while self._cycle.phase is not RankPhase.FINISHED:
            self._mailbox.probes.serve(self._probe)
            match self._cycle.next_action(leaving=self._mailbox.leaving()):
                case Action.LEAVE:
                    self._leave()
                case Action.WAIT_FOR_PLAN:
                    self._wait_for_plan()
                case Action.FAREWELL:
                    self._guarded(self._finish)
                case Action.ITERATE:
                    self._guarded(self._iterate)
        self._abandon_groups()
        self._safekeeping.close(_LAST_CHECKPOINT_SECONDS)

    # ---- one iteration

    def _iterate(self) -> None:
        runtime, vote, iteration = self._runtime, self._vote, self._cycle.steps_applied
        assert runtime is not None, "a training rank has a runtime"
        assert vote is not None, "a training rank has a vote"
        self._emitter.progress.begin_iteration(iteration, self._cycle.epoch)
        self._link_probes.run()
        self._clock.begin_iteration()
        loss_part = runtime.run_iteration(iteration)
        norm_part = runtime.reducer.squared_norm_part()
        if self._config.optimizer.max_gradient_norm is not None:
            # Before the vote: whoever voted can step alone after a failure, so it must know the scale.
            self._gradient_scale = clip_scale(self._config.optimizer, vote.gradient_norm(norm_part))
        self._clock.wait(WaitKind.VOTE, self._copies.partners, self._copies.finish)
        self._cycle.vote()
        outcome = vote.hold(self._mailbox.committed_epoch(), loss_part, norm_part, self._link_probes.arm())
        self._apply_step()
        checkpoint = self._safekeeping.checkpoint(self._holdings[self._cycle.epoch])
        self._emit(runtime, iteration, outcome.loss, outcome.gradient_norm, checkpoint=checkpoint)
        self._after_reshape = False
        if self._on_step is not None:
            self._on_step(Step(iteration=iteration, epoch=self._cycle.epoch, loss=outcome.loss))
        following = self._cycle.epoch_after(outcome.committed_epoch)
        if following is not None:
            if not self._follow_plan(following):
                raise Interrupted  # a recovery is being prepared: it comes first, on every rank
        else:
            self._link_probes.heard(outcome.armed)
            self._safekeeping.send(self._holdings[self._cycle.epoch])
            self._publish()

    def _emit(
        self, runtime: EpochRuntime, iteration: int, loss: float | None, norm: float | None, checkpoint: bool = False
    ) -> None:
        """Tell of a step that was just applied."""
        self._emitter.emit_later(
            iteration_measured(
                runtime,
                self._clock,
                self._traffic,
                iteration=iteration,
                epoch=self._cycle.epoch,
                loss=loss,
                gradient_norm=norm,
                after_reshape=self._after_reshape,
                checkpoint=checkpoint,
            )
        )

    def _apply_step(self) -> None:
        """Step with the reduced gradients that everybody holds; older epochs are not needed any more."""
        assert self._runtime is not None, "a rank that voted has a runtime"
        self._runtime.step(self._gradient_scale)
        self._copies.voted()
        self._cycle.stepped()
        self._last_step_at = time.time()
        if self._holdings.settle(self._cycle.epoch):
            self._rendezvous.announce(f"voted/{self._cycle.epoch}", self._rank)

    # ---- parking and plans

    def _guarded(self, action: Callable[[], T]) -> T | None:
        """Run something that waits for peers; park when it cannot go on."""
        try:
            return action()
        except Interrupted:
            self._park()
        except PeerLost as lost:
            _log.warning("rank %d parks at iteration %d: %s", self._rank, self._cycle.steps_applied, lost)
            self._emitter.emit_event(
                pb.ProcessEvent(
                    at_unix_seconds=time.time(),
                    kind=pb.PROCESS_EVENT_KIND_CONNECTION_LOST,
                    rank=self._rank,
                    incarnation=self._incarnation,
                    detail=str(lost)[:300],
                )
            )
            self._park()
        return None

    def _park(self) -> None:
        self._abandon_groups()
        self._after_reshape = True
        self._emitter.progress.enter("parked")
        self._cycle.park(holds_anything=bool(self._holdings.epochs))
        self._publish()

    def _wait_for_plan(self) -> None:
        if self._guarded(lambda: self._follow_plan(timeout_seconds=_PARKED_POLL_SECONDS)):
            return
        if self._safekeeping.look():
            self._publish()
        if self._cycle.phase is RankPhase.JOINING:
            if self._holdings.epochs and self._rendezvous.heard(f"voted/{self._cycle.left_for}"):
                self._holdings.forget()
                self._copies.forget()
                self._publish()
            if self._is_job_finished():
                self._leave()

    # ---- from epoch to epoch

    def _follow_plan(self, epoch: int | None = None, timeout_seconds: float = 0.0) -> bool:
        """Whether there was a plan to follow; see :meth:`Mailbox.switching`.

        Raises:
            Interrupted, PeerLost: It cannot be carried out now.
        """
        try:
            with self._mailbox.switching(epoch, timeout_seconds) as commit:
                if commit is not None:
                    self._switch(commit)
                return commit is not None
        except MissingSliceError as error:
            _log.error("rank %d parks: a plan cannot be carried out: %s", self._rank, error)
            self._park()
            return True

    def _begin(self) -> None:
        layout = self._initial_layout
        assert layout is not None, "epoch 0 has a layout"
        if layout.position_of(self._rank) is None:
            return
        steps = self._config.resume_steps
        state = self._safekeeping.restorer.read(layout, epoch=0, steps_applied=steps)
        self._holdings.begin(state)
        self._layout = layout
        self._cycle.enter(0, steps)
        with self._mailbox.beginning():
            self._groups = self._transition.begin(layout)
            self._enter(0, Arrival(groups=self._groups, state=state), state)

    def _switch(self, commit: Commit) -> None:
        """Go over to the epoch of a committed plan.

        Raises:
            MissingSliceError: A slice that it needs is nowhere where the plan says; nothing has changed.
            Interrupted, PeerLost: It cannot be carried out now.
        """
        epoch, layout = commit.reshape.epoch, commit.reshape.to_layout
        self._after_reshape = True
        self._emitter.progress.enter(RESHAPING)
        self._catch_up(commit)
        self._abandon_groups()
        arrival = self._transition.follow(commit, *self._holdings.readable(commit))
        self._groups = arrival.groups
        if arrival.state is None:
            self._stand_by(epoch, layout)
            return
        self._holdings.follow(commit, arrival.state)
        self._layout = layout
        self._enter(epoch, arrival, arrival.state)

    def _catch_up(self, commit: Commit) -> None:
        """Get to the step at which the plan goes on.

        Raises:
            MissingSliceError: This rank's slices do not fit the plan, and nothing earlier is there that does.
        """
        cycle, iteration = self._cycle, self._cycle.steps_applied
        earlier = self._copies.steps_to_go_back_to(commit.from_epoch)
        match cycle.way_to(commit, self._holdings.epochs, earlier):
            case Way.STEP:
                self._apply_step()
                if self._runtime is not None:
                    # The vote's outcome was lost with a peer: nobody knows loss and norm of the whole iteration here.
                    self._emit(self._runtime, iteration, None, None)
            case Way.BACK:
                self._holdings.go_back(commit)
                cycle.steps_applied = commit.steps_applied
            case Way.UNFIT:
                raise MissingSliceError(
                    f"plan {commit.reshape.plan_id} says {commit.steps_applied} steps are applied, but rank "
                    f"{self._rank} is at {iteration} and holds no voted gradients: its state does not fit the plan"
                )

    def _enter(self, epoch: int, arrival: Arrival, state: ShardState) -> None:
        """Everything is in place: train under ``epoch``."""
        assert self._layout is not None, "an entered epoch has a layout"
        self._cycle.enter(epoch, state.steps_applied)
        self._runtime = EpochRuntime(
            self._config,
            self._dataset,
            self._layout,
            self._rank,
            state,
            self._groups,
            self._clock,
            arrival.sums,
            arrival.salvaged,
        )
        self._holdings.take_sums(epoch, self._runtime.sums)
        self._vote = StepVote(self._config, self._layout, self._rank, self._groups, self._clock)
        self._clock.take_compute()
        self._clock.take_waiting()
        self._traffic.attach(self._layout, self._groups)
        self._lines.enter(epoch, self._groups.values())
        self._link_probes.enter(epoch, self._groups)
        self._safekeeping.enter(self._layout, epoch, self._groups, state)
        self._publish()

    def _stand_by(self, epoch: int, layout: Layout) -> None:
        """This rank has no position any more. Its slices stay until the new epoch has voted once, in case it fails."""
        self._abandon_groups()
        self._runtime = None
        self._layout = layout
        self._cycle.stand_by(epoch)
        self._emitter.progress.enter("standby")
        self._publish()

    def _finish(self) -> None:
        """The last step is applied here; leave only when it is applied everywhere, or peers would see a lost rank."""
        assert self._layout is not None, "a training rank has a layout"
        self._emitter.progress.enter("finishing")
        try:
            self._rendezvous.meet(
                f"epoch/{self._cycle.epoch}/finished",
                self._rank,
                self._layout.ranks,
                self._cycle.steps_applied,
                # Who has left already cannot tell a new store that it was here.
                waiter=Waiter(lambda: self._mailbox.interrupted() or self._is_job_finished()),
                timeout_seconds=_FAREWELL_SECONDS,
                widest=self._config.vote_width,
            )
        except Interrupted:
            if not self._job_finished:
                raise
        self._rendezvous.announce(JOB_FINISHED, self._cycle.steps_applied)
        self._leave()

    def _leave(self) -> None:
        self._cycle.finish()
        self._publish()

    def _is_job_finished(self) -> bool:
        """Whether somebody was in a complete farewell; once heard, it stays so."""
        self._job_finished = self._job_finished or self._rendezvous.heard(JOB_FINISHED)
        return self._job_finished

    def _abandon_groups(self) -> None:
        groups, self._groups = self._groups, {}
        self._lines.leave()
        self._link_probes.leave()
        self._safekeeping.give_up_round()
        self._builder.abandon(groups)

    def _publish(self) -> None:
        state = self._cycle.state(self._holdings.epochs, self._last_step_at)
        self._mailbox.publish(self._safekeeping.described(state))
