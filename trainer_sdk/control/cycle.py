"""What a rank does next, pure: iterations, votes, parking, and the way from one epoch to the next.

An engine executes this with tensors and groups; the simulation of the protocol without. The rules:

- Whoever has voted holds the reduced gradients and may have to step alone, once a recovery finds that somebody did.
- Whoever hears that a vote passed steps. If every rank carried a later plan's commit, all switch right after that step.
- A rank that loses its peers parks, and keeps what it holds. Without anything of the job it is joining.
"""

from collections.abc import Collection
from enum import StrEnum

from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.trainer_sdk.control.state import Commit


class Action(StrEnum):
    """What the training thread turns to."""

    ITERATE = "iterate"
    WAIT_FOR_PLAN = "wait for plan"
    FAREWELL = "farewell"
    LEAVE = "leave"


class Way(StrEnum):
    """How a rank gets to the step at which a plan goes on."""

    THERE = "there"
    STEP = "step"
    """Others have applied it before the failure, and this rank voted for it: it holds the gradients."""

    BACK = "back"
    """To its own slices of an earlier step."""

    UNFIT = "unfit"


class RankCycle:
    """One rank's. No tensor, no clock, no wait.

    Args:
        rank: This rank.
        incarnation: Which process of the rank this is.
        num_iterations: How many steps the job has.

    Attributes:
        phase: What it does, as it says itself.
        epoch: Epoch in force; -1 before the first.
        steps_applied: Steps in the slices that it holds.
        voted: It holds the reduced gradients of iteration ``steps_applied``.
        left_for: The epoch without it for which it gave its place up; what it holds is needed until that has voted.
    """

    def __init__(self, rank: int, incarnation: int, num_iterations: int) -> None:
        self._rank = rank
        self._incarnation = incarnation
        self._num_iterations = num_iterations
        self.phase = RankPhase.JOINING
        self.epoch = -1
        self.steps_applied = 0
        self.voted = False
        self.left_for = -1

    def next_action(self, *, leaving: bool) -> Action:
        """What to do now.

        Args:
            leaving: The rank is evicted.
        """
        if leaving:
            return Action.LEAVE
        if self.phase is not RankPhase.TRAINING:
            return Action.WAIT_FOR_PLAN
        return Action.FAREWELL if self.steps_applied >= self._num_iterations else Action.ITERATE

    def vote(self) -> None:
        """It is about to say that it holds the reduced gradients."""
        self.voted = True

    def stepped(self) -> None:
        """The step that it voted for is applied."""
        assert self.voted, "nobody steps without the reduced gradients"
        self.voted = False
        self.steps_applied += 1

    def epoch_after(self, agreed: int) -> int | None:
        """The epoch to switch to after a step whose vote agreed on a commit; None = this one goes on."""
        return agreed if agreed > self.epoch else None

    def park(self, *, holds_anything: bool) -> None:
        """It has lost its peers, or was told to stop waiting for them."""
        self.phase = RankPhase.PARKED if holds_anything else RankPhase.JOINING

    def way_to(self, commit: Commit, held: Collection[int], earlier: Collection[int]) -> Way:
        """How to get to the step at which a plan goes on. After it the vote of the old epoch is over.

        Args:
            commit: The plan.
            held: Epochs whose slices it holds.
            earlier: Earlier steps of ``commit.from_epoch`` of which it has its own slices.
        """
        voted, self.voted = self.voted, False
        if commit.steps_applied < 0 or not held or commit.from_checkpoint:
            return Way.THERE
        if voted and self.steps_applied == commit.steps_applied - 1:
            self.voted = True
            return Way.STEP
        if self.steps_applied > commit.steps_applied and commit.steps_applied in earlier:
            return Way.BACK
        fits = commit.from_epoch not in held or self.steps_applied == commit.steps_applied
        return Way.THERE if fits else Way.UNFIT

    def enter(self, epoch: int, steps_applied: int) -> None:
        """It has a position in an epoch, and all that it needs there."""
        self.phase, self.epoch, self.steps_applied = RankPhase.TRAINING, epoch, steps_applied

    def finish(self) -> None:
        """The job is over, or goes on without this rank."""
        self.phase = RankPhase.FINISHED

    def stand_by(self, epoch: int) -> None:
        """It has no position in an epoch."""
        self.phase, self.epoch, self.left_for = RankPhase.JOINING, epoch, epoch

    def state(self, held: tuple[int, ...], last_step_at_unix_seconds: float = 0.0) -> RankState:
        """What it says of itself.

        Args:
            held: Epochs whose slices it holds, ascending.
            last_step_at_unix_seconds: Of the last step.
        """
        return RankState(
            rank=self._rank,
            incarnation=self._incarnation,
            phase=self.phase,
            epoch=self.epoch,
            iteration=self.steps_applied,
            steps_applied=self.steps_applied,
            voted=self.voted,
            held_epochs=held,
            last_step_at_unix_seconds=last_step_at_unix_seconds,
        )
