"""What a rank says of itself, and is asked: the words that the rank controller and the scheduler share."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class RankPhase(StrEnum):
    """What a rank is doing."""

    JOINING = "joining"
    TRAINING = "training"
    PARKED = "parked"
    RESHAPING = "reshaping"
    FINISHED = "finished"


class Ballot(NamedTuple):
    """Names one attempt at a plan; a later one is greater, whoever made it (Lamport, "Paxos Made Simple", 2001).

    Attributes:
        term: Of the scheduler that attempts it; 0 = schedulers do not take turns.
        epoch: That the plan leads to.
    """

    term: int
    epoch: int


NO_BALLOT = Ballot(0, 0)
"""Before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCopy:
    """A complete copy of what ``owner`` held of ``epoch`` after ``steps_applied`` steps."""

    owner: int
    epoch: int
    steps_applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierState:
    """A rank's own slices of ``epoch`` as they were after ``steps_applied`` steps."""

    epoch: int
    steps_applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """``keeper`` is read in place of ``owner``, which is gone."""

    owner: int
    keeper: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbe:
    """What one end of a link is asked; fields as in ``evenkeel.control.v1.LinkProbe``."""

    probe_id: int
    partner_rank: int
    num_bytes: int
    num_ranks: int
    repetitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """A rank's state, as its training thread published it.

    Attributes:
        rank: Rank.
        incarnation: Which process of the rank.
        phase: What it is doing.
        epoch: Epoch in force; -1 before the first.
        iteration: Iteration in progress.
        steps_applied: Optimizer steps applied since the start of the job: the iteration that comes next.
        voted: Holds the reduced gradients of iteration ``steps_applied`` and voted for the step.
        held_epochs: Epochs whose parameter slices the rank holds completely, newest last.
        last_step_at_unix_seconds: Wall-clock time of the last applied step; 0 before the first.
        copies: Complete copies of other ranks' slices that it keeps.
        earlier: Its own slices at earlier steps, to which it can go back.
        checkpoint_steps: Steps of the complete checkpoints on disk that it can read, ascending.
        promised: Newest ballot that it was asked about, whoever asked: it takes part in nothing older.
        pending_epoch: Epoch of the newest plan that is committed here and not applied yet; 0 = none.
        failed_epoch: Epoch of the newest committed plan that it could not apply, while no later one is; 0 = none.
        failed_reason: Why not.
        keeper_of: Ranks of whose slices it keeps a copy, anew in every round, for as long as it trains in its epoch.
    """

    rank: int
    incarnation: int
    phase: RankPhase
    epoch: int = -1
    iteration: int = 0
    steps_applied: int = 0
    voted: bool = False
    held_epochs: tuple[int, ...] = ()
    last_step_at_unix_seconds: float = 0.0
    copies: tuple[KeptCopy, ...] = ()
    earlier: tuple[EarlierState, ...] = ()
    checkpoint_steps: tuple[int, ...] = ()
    promised: Ballot = NO_BALLOT
    pending_epoch: int = 0
    failed_epoch: int = 0
    failed_reason: str = ""
    keeper_of: tuple[int, ...] = ()

    @property
    def newest_epoch(self) -> int:
        """The next plan must lead beyond it, or the rank refuses it."""
        return max(self.epoch, self.promised.epoch)
