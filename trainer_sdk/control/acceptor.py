"""The rank's half of the protocol, pure: which plan this rank is promised to, carries, or moves by.

A single-decree acceptor per attempt at a plan (Lamport, "Paxos Made Simple", 2001): the scheduler decides, the rank
reports, and no rank can keep a later plan from being made:

- Prepare with a greater ballot is noted, and answered with all that the rank has; in mode RECOVER once it is parked.
- Commit is taken for any ballot that is not below the promise and leads beyond what is committed or in force. It
  replaces what was committed before and is not applied.
- A commit is handed over once, and that ends as applied, or as failed: the rank is RESHAPING until it says where it is.
- A commit in mode BOUNDARY leaves only at the boundary, or to a rank that has no part in it: one that is JOINING, or
  PARKED in an epoch that others have left. A prepared RECOVER hides it until its Abort, or a later scheduler.
"""

from dataclasses import dataclass, replace

from evenkeel.layouts.rank_state import NO_BALLOT, Ballot, RankPhase, RankState
from evenkeel.trainer_sdk.control.refusals import FinishedError, StaleBallotError
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape

MOST_EPOCHS_AHEAD = 1_000_000
"""An attempt at a plan uses one epoch up: nobody is so far ahead, and a rank that believed it would refuse the rest."""
SAFE_PHASES = frozenset({RankPhase.PARKED, RankPhase.JOINING})
"""What a rank that waits for a plan says: its slices and steps do not change until it is given one."""

_TAKEN_IN = {
    RankPhase.TRAINING: frozenset({ApplyMode.BOUNDARY}),
    RankPhase.PARKED: frozenset({ApplyMode.RECOVER}),  # its boundary is lost with its peers
    RankPhase.JOINING: frozenset(ApplyMode),
    RankPhase.FINISHED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Switching:
    """The training thread moves to an epoch.

    Attributes:
        epoch: To which.
        plan_id: By which plan; empty for the job's first epoch.
        failure: Why it cannot; empty while it tries. The rank has not said yet where that leaves it.
    """

    epoch: int
    plan_id: str = ""
    failure: str = ""


class Acceptor:
    """One rank's. No clock, no lock, no wait: :class:`~evenkeel.trainer_sdk.control.mailbox.Mailbox` has these.

    Args:
        rank: This rank.
        incarnation: Which process of the rank this is.

    Attributes:
        asked: The plan that it was asked about last, while that is not decided.
        waiting: The decision that waits to be handed over.
        switching: Where the training thread moves to.
        promised: Greatest ballot that it was asked about.
        leaving: It is evicted: the process should end.
    """

    def __init__(self, rank: int, incarnation: int = 0) -> None:
        self.asked: Reshape | None = None
        self.waiting: Commit | None = None
        self.switching: Switching | None = None
        self.promised = NO_BALLOT
        self.leaving = False
        self._said = RankState(rank=rank, incarnation=incarnation, phase=RankPhase.JOINING)
        self._decided = (-1, "")  # newest committed (epoch, plan)
        self._failed = (0, "")
        self._interrupt_epoch = -2

    # ---- what can be seen

    @property
    def state(self) -> RankState:
        """All that the rank has; it is RESHAPING while its training thread moves."""
        epoch, reason = self._failed
        return replace(
            self._said,
            phase=RankPhase.RESHAPING if self.switching else self._said.phase,
            promised=self.promised,
            pending_epoch=self.waiting.reshape.epoch if self.waiting else self._moving_to,
            failed_epoch=epoch,
            failed_reason=reason,
        )

    @property
    def committed_epoch(self) -> int:
        """The epoch of the newest commit that may be handed over, or the one in force: what a step vote carries."""
        visible = self._visible
        return self._position if visible is None else visible.reshape.epoch

    @property
    def interrupted(self) -> bool:
        """Whether the training thread should stop waiting for peers, and park."""
        visible = self._visible
        decided = visible is not None and visible.reshape.mode is ApplyMode.RECOVER
        return self._is_asked_to_recover or decided or self._interrupt_epoch >= self._position or self.leaving

    # ---- the scheduler

    def prepare(self, plan: Reshape) -> None:
        """Note a plan; :meth:`answer` has the answer, perhaps later.

        Raises:
            StaleBallotError: The promise is to a greater ballot, or to another plan of this one; or the plan does not
                lead beyond what is committed or in force.
            FinishedError: The rank is done.
            ValueError: No plan can have that epoch.
        """
        self._refuse_far(plan.epoch)
        if self._is(plan, self.asked) or (_key(plan) == self._decided and self._said.epoch <= plan.epoch):
            return
        ballot = Ballot(plan.term, plan.epoch)
        if ballot <= self.promised or plan.epoch <= self._top:
            raise self._stale(f"plan {plan.plan_id} leads to epoch {plan.epoch} of term {plan.term}")
        self._refuse_finished()
        self._promise(ballot)
        self.asked = plan

    def answer(self, plan: Reshape) -> RankState | None:
        """The answer to a plan that was prepared; None while the rank has yet to park for it.

        Raises:
            StaleBallotError: It was superseded while it waited.
            FinishedError: The rank is done.
        """
        self._refuse_finished()
        if self._is(plan, self.asked):
            waits = plan.mode is ApplyMode.RECOVER and self.state.phase not in SAFE_PHASES
            return None if waits else self.state
        if _key(plan) == self._decided:
            return self.state
        raise self._stale(f"plan {plan.plan_id} for epoch {plan.epoch} was superseded while it waited")

    def commit(self, commit: Commit) -> None:
        """Take a decision in. No Prepare is needed before: a scheduler that restarted in between need not repeat it.

        Raises:
            StaleBallotError: As for :meth:`prepare`; or another plan is committed for this epoch.
            FinishedError, ValueError: As for :meth:`prepare`.
        """
        plan = commit.reshape
        self._refuse_far(plan.epoch)
        if _key(plan) == self._decided:
            return
        ballot, asked = Ballot(plan.term, plan.epoch), self.asked
        other = asked is not None and ballot == (asked.term, asked.epoch) and not self._is(plan, asked)
        if ballot < self.promised or plan.epoch <= self._top or other:
            raise self._stale(f"plan {plan.plan_id} for epoch {plan.epoch} of term {plan.term} comes too late")
        self._refuse_finished()
        self._decided = _key(plan)
        self._promise(ballot)
        self.waiting, self.asked = commit, None

    def abort(self, plan_id: str, ballot: Ballot) -> None:
        """Forget a plan that is not committed; its Prepare, should it come after this, is stale.

        A parked rank stays parked; a plan that is not known is no error.

        Raises:
            ValueError: As for :meth:`prepare`.
        """
        self._refuse_far(ballot.epoch)
        self._promise(ballot)
        if self.asked is not None and _key(self.asked) == (ballot.epoch, plan_id):
            self.asked = None

    def follow(self, term: int) -> None:
        """A scheduler of this term is heard: of a lower one only what it decided counts, what it asked is off.

        Raises:
            StaleBallotError: This rank follows a later one.
        """
        if term < self.promised.term:
            raise self._stale(f"the scheduler of term {term} is not in charge any more")
        self._promise(Ballot(term, 0))
        if self.asked is not None and self.asked.term < term:
            self.asked = None

    def interrupt(self, epoch: int, *, leave: bool) -> None:
        """Stop waiting and park, or end the process.

        An epoch that it has not heard of stands for the newest that it has: plans to come are not interrupted.

        Raises:
            StaleBallotError: The rank is already beyond ``epoch``.
        """
        beyond = self._said.epoch if leave else self._position
        if epoch < beyond:
            raise self._stale(f"interrupt for epoch {epoch}, but this rank is at epoch {beyond}")
        self._interrupt_epoch = max(self._interrupt_epoch, min(epoch, max(self._position, self._decided[0])))
        self.leaving = self.leaving or leave

    # ---- the training thread

    def take(self, epoch: int | None = None) -> Commit | None:
        """Hand the commit over that the rank's phase allows now, if there is one: the rank is RESHAPING from here on.

        Args:
            epoch: The one that a step vote agreed on; another commit stays. None = whichever there is.
        """
        visible = self._visible
        assert self.switching is None  # a hand-over ends before the next one
        if visible is None:
            return None
        left_behind = self._said.phase is RankPhase.PARKED and visible.from_epoch != self._said.epoch
        if not left_behind and visible.reshape.mode not in _TAKEN_IN[self._said.phase]:
            return None
        if epoch is not None and visible.reshape.epoch != epoch:
            return None
        self.switching, self.waiting = Switching(visible.reshape.epoch, visible.reshape.plan_id), None
        return visible

    def begin(self) -> None:
        """The training thread moves to the job's first epoch, 0, which no plan leads to."""
        assert self.switching is None
        self.switching = Switching(0)

    def fail(self, reason: str) -> None:
        """The training thread cannot go over; what it says next tells where that leaves it."""
        if self.switching is not None:
            self.switching = replace(self.switching, failure=reason)
            self._failed = (self.switching.epoch, reason) if self.switching.plan_id else self._failed

    def publish(self, said: RankState) -> None:
        """The training thread says where it is. An epoch in it that is new is applied, and what led there is over.

        Raises:
            ValueError: Its epoch is older than the one before, or it claims to be RESHAPING.
        """
        if said.epoch < self._said.epoch:
            raise ValueError(f"epoch {said.epoch} cannot follow epoch {self._said.epoch}")
        if said.phase is RankPhase.RESHAPING:
            raise ValueError("a rank is RESHAPING while it carries out a commit: that follows, it is not published")
        if self.switching is not None and (self.switching.failure or said.epoch >= self.switching.epoch):
            self.switching = None
        self._said = said
        self._promise(Ballot(self.promised.term, said.epoch))
        if self._failed[0] < said.epoch:
            self._failed = (0, "")
        if self.waiting is not None and self.waiting.reshape.epoch <= said.epoch:
            self.waiting = None
        if self.asked is not None and self.asked.epoch <= said.epoch:
            self.asked = None

    # ---- inside

    @property
    def _is_asked_to_recover(self) -> bool:
        return self.asked is not None and self.asked.mode is ApplyMode.RECOVER

    @property
    def _visible(self) -> Commit | None:
        """The commit that waits, unless a recovery that is being prepared hides it."""
        return None if self._is_asked_to_recover else self.waiting

    @property
    def _moving_to(self) -> int:
        """The epoch that the training thread tries to reach; 0 = none."""
        return self.switching.epoch if self.switching is not None and not self.switching.failure else 0

    @property
    def _position(self) -> int:
        """The epoch in force, or the one that the training thread is moving to."""
        return max(self._said.epoch, self._moving_to)

    @property
    def _top(self) -> int:
        """No plan may lead to it, or below."""
        return max(self._said.epoch, self._decided[0])

    def _promise(self, ballot: Ballot) -> None:
        self.promised = max(self.promised, Ballot(ballot.term, max(ballot.epoch, self._top)))

    @staticmethod
    def _is(plan: Reshape, other: Reshape | None) -> bool:
        return other is not None and (_key(plan), plan.term) == (_key(other), other.term)

    def _stale(self, what: str) -> StaleBallotError:
        term, epoch = self.promised
        where = f"rank {self._said.rank} is at epoch {self._said.epoch}, promised to epoch {epoch} of term {term}"
        return StaleBallotError(self.promised, f"{what}, but {where}")

    def _refuse_finished(self) -> None:
        if self._said.phase is RankPhase.FINISHED:
            raise FinishedError(f"rank {self._said.rank} has finished; no plan can include it")

    def _refuse_far(self, epoch: int) -> None:
        if epoch > self._top + MOST_EPOCHS_AHEAD:
            raise ValueError(
                f"epoch {epoch} is more than {MOST_EPOCHS_AHEAD} beyond epoch {self._top} of rank "
                f"{self._said.rank}: use one that is above all that the job's plans have used"
            )


def _key(plan: Reshape) -> tuple[int, str]:
    return (plan.epoch, plan.plan_id)
