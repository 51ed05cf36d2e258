"""The training loop of one rank: iterations, step votes, and the switch from one epoch to the next.

Everything here runs on the training thread. Control reaches it through the mailbox only, at three places: between the
slices of a wait (interrupt), at the step vote (a boundary that everybody carries), and while parked. What is decided
by whom is in docs/architecture.md, "How a plan is applied".
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from evenkeel.layouts.rank_state import RankPhase
from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.trainer_sdk.control.cycle import Action, RankCycle, Way
from evenkeel.trainer_sdk.control.state import Commit
from evenkeel.trainer_sdk.devices.matrix_probe import MatrixProbe
from evenkeel.trainer_sdk.elastic.config import config_from_json
from evenkeel.trainer_sdk.elastic.copies.safekeeping import Safekeeping
from evenkeel.trainer_sdk.elastic.program.workplace import Workplace
from evenkeel.trainer_sdk.elastic.state.holdings import Holdings
from evenkeel.trainer_sdk.elastic.state.transfers import MissingSliceError
from evenkeel.trainer_sdk.elastic.state.transition import Arrival, Transition
from evenkeel.trainer_sdk.emit.emitter import process_event
from evenkeel.trainer_sdk.groups.building.builder import RESHAPING
from evenkeel.trainer_sdk.groups.errors import Interrupted, PeerLost
from evenkeel.trainer_sdk.launcher.processes.context import RankContext

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PARKED_POLL_SECONDS = 0.25
_LAST_CHECKPOINT_SECONDS = 20.0


class Engine:
    """One rank of an elastic job.

    Args:
        context: The rank's surroundings; ``config`` is what
            :func:`~evenkeel.trainer_sdk.elastic.config.config_to_json` made.

    Raises:
        ValueError: The configuration is not usable.
    """

    def __init__(self, context: RankContext) -> None:
        config = replace(config_from_json(context.config), job_id=context.job_id, device=context.torch_device)
        self._config, self._context = config, context
        self._rank, self._mailbox, self._emitter = context.rank, context.mailbox, context.emitter
        self._probe = MatrixProbe(context.device, config.device)
        self._work = Workplace(config, context)
        self._safekeeping = Safekeeping(config, self._rank, context.node_of)
        self._copies = self._safekeeping.peers
        self._transition = Transition(config, self._rank, self._work.builder, self._safekeeping, self._emitter.progress)
        self._cycle = RankCycle(self._rank, context.incarnation, config.num_iterations)
        self._holdings = Holdings(self._rank, self._copies)
        self._last_step_at = 0.0
        self._after_reshape = False

    def run(self) -> None:
        """Train until the job's last iteration, or until the rank is evicted."""
        self._publish()
        if self._context.initial_layout is not None:
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
        work, iteration, epoch = self._work, self._cycle.steps_applied, self._cycle.epoch
        work.compute(iteration, self._copies)
        self._cycle.vote()
        outcome = work.vote(self._mailbox.committed_epoch())
        self._apply_step()
        checkpoint = self._safekeeping.checkpoint(self._holdings[epoch])
        work.emit(iteration, outcome, after_reshape=self._after_reshape, checkpoint=checkpoint)
        self._after_reshape = False
        following = self._cycle.epoch_after(outcome.committed_epoch)
        if following is not None:
            if not self._follow_plan(following):
                raise Interrupted  # a recovery is being prepared: it comes first, on every rank
        else:
            self._safekeeping.send(self._holdings[epoch])
            self._publish()

    def _apply_step(self) -> None:
        """Step with the reduced gradients that everybody holds; older epochs are not needed any more."""
        self._work.step()
        self._copies.voted()
        self._cycle.stepped()
        self._last_step_at = time.time()
        if self._holdings.settle(self._cycle.epoch):
            self._work.rendezvous.announce(f"voted/{self._cycle.epoch}", self._rank)

    # ---- parking and plans

    def _guarded(self, action: Callable[[], T]) -> T | None:
        """Run something that waits for peers; park when it cannot go on."""
        try:
            return action()
        except Interrupted:
            self._park()
        except PeerLost as lost:
            _log.warning("rank %d parks at iteration %d: %s", self._rank, self._cycle.steps_applied, lost)
            kind = pb.PROCESS_EVENT_KIND_CONNECTION_LOST
            self._emitter.emit_event(process_event(kind, self._rank, self._context.incarnation, str(lost)[:300]))
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
            if self._holdings.epochs and self._work.rendezvous.heard(f"voted/{self._cycle.left_for}"):
                self._holdings.forget()
                self._copies.forget()
                self._publish()
            if self._work.is_job_finished():
                self._leave()

    # ---- from epoch to epoch

    def _follow_plan(self, epoch: int | None = None, timeout_seconds: float = 0.0) -> bool:
        """Whether there was a plan to follow; see :meth:`Mailbox.switching`.

        Raises:
            WaitBroken: It cannot be carried out now.
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
        layout = self._context.initial_layout
        assert layout is not None, "epoch 0 has a layout"
        if layout.position_of(self._rank) is None:
            return
        steps = self._config.resume_steps
        state = self._safekeeping.read(layout, epoch=0, steps_applied=steps)
        self._holdings.begin(state)
        self._cycle.enter(0, steps)
        with self._mailbox.beginning():
            self._enter(self._transition.begin(state))

    def _switch(self, commit: Commit) -> None:
        """Go over to the epoch of a committed plan.

        Raises:
            MissingSliceError: A slice that it needs is nowhere where the plan says; nothing has changed.
            WaitBroken: It cannot be carried out now.
        """
        self._after_reshape = True
        self._emitter.progress.enter(RESHAPING)
        self._catch_up(commit)
        self._abandon_groups()
        arrival = self._transition.follow(commit, *self._holdings.readable(commit))
        if arrival is None:
            self._stand_by(commit.reshape.epoch)
            return
        self._holdings.follow(commit, arrival.state)
        self._enter(arrival)

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
                # The vote's outcome was lost with a peer: nobody knows loss and norm of the whole iteration here.
                self._work.emit(iteration, None, after_reshape=self._after_reshape, checkpoint=False)
            case Way.BACK:
                self._emitter.progress.enter("checkpoint")
                self._holdings.go_back(commit)
                self._emitter.progress.enter(RESHAPING)
                cycle.steps_applied = commit.steps_applied
            case Way.UNFIT:
                raise MissingSliceError(
                    f"plan {commit.reshape.plan_id} says {commit.steps_applied} steps are applied, but rank "
                    f"{self._rank} is at {iteration} and holds no voted gradients: its state does not fit the plan"
                )

    def _enter(self, arrival: Arrival) -> None:
        """Everything is in place: train under the epoch of the state."""
        state = arrival.state
        self._cycle.enter(state.epoch, state.steps_applied)
        self._holdings.take_sums(state.epoch, self._work.enter(arrival))
        self._safekeeping.enter(self._work.groups, state)
        self._publish()

    def _stand_by(self, epoch: int) -> None:
        """This rank has no position any more. Its slices stay until the new epoch has voted once, in case it fails."""
        self._cycle.stand_by(epoch)
        self._emitter.progress.enter("standby")
        self._publish()

    def _finish(self) -> None:
        """The last step is applied here; leave only when it is applied everywhere."""
        self._work.finish(self._holdings[self._cycle.epoch])
        self._leave()

    def _leave(self) -> None:
        self._cycle.finish()
        self._publish()

    def _abandon_groups(self) -> None:
        self._work.leave()
        self._safekeeping.give_up_round()

    def _publish(self) -> None:
        state = self._cycle.state(self._holdings.epochs, self._last_step_at)
        self._mailbox.publish(self._safekeeping.described(state))
