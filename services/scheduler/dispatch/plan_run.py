"""One plan's way to the ranks as a machine: what happens goes in, what to do comes out. No clock, no task, no wait.

Prepare all, decide, make that durable, Commit all, until all run it. Before the decision is durable no rank has changed
anything; after it a rank that does not answer is dead or will answer, and its verdict ends the run. Whoever was asked
about a plan that comes to nothing is owed the word that it is off: such a run is over when all of them have had it.

Every live process of the job hears of every plan, so that none is left with one that is over. Those that neither the
layout in force nor the plan's counts on are told beside the others, and waited for in nothing.
"""

from enum import StrEnum

from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError
from evenkeel.services.scheduler.dispatch.protocol import Decision, RankAwayError, RankGoneError, RankRefusedError
from evenkeel.services.scheduler.dispatch.question import Question
from evenkeel.services.scheduler.dispatch.run_events import (
    Answered,
    Ask,
    Dropped,
    Effect,
    Event,
    Failed,
    Landed,
    Overdue,
    Save,
    Saved,
    Told,
    Verb,
)

_RUNNING = (RankPhase.TRAINING, RankPhase.FINISHED)


class Stage(StrEnum):
    """How far a plan is."""

    PREPARING = "preparing"
    DECIDING = "deciding"
    DECIDED = "decided"
    OFF = "off"
    OVER = "over"


class PlanRun:
    """One plan between its first question to a rank and its end.

    Attributes:
        stage: How far it is.
        decision: What is decided, once it is.
    """

    def __init__(self, question: Question, decision: Decision | None = None) -> None:
        """A run that begins, or goes on after a restart.

        Args:
            question: What it changes.
            decision: What is durably decided already.
        """
        self.stage = Stage.PREPARING if decision is None else Stage.DECIDED
        self._question = question
        self._owed = set(question.concerned | question.others)
        self._ballot = Ballot(question.reshape.term, question.reshape.epoch)
        self.decision = decision
        self._answers: dict[int, RankState] = {}
        self._away: dict[int, RankAwayError] = {}
        self._uncommitted = set(question.concerned)
        self._steps: dict[int, int] = {}
        self._to_ranks = frozenset(question.reshape.to_layout.ranks)
        self._idle = set(self._to_ranks)
        self._failures: dict[int, str] = {}

    def begin(self) -> list[Effect]:
        """The first effects."""
        return self._ask_all(Verb.PREPARE if self.stage is Stage.PREPARING else Verb.COMMIT)

    def on(self, event: Event) -> list[Effect]:
        """What to do about an event; one that comes too late is nothing.

        After :class:`Failed` the plan is :attr:`Stage.OFF` unless it was decided: :class:`Dropped` then gives whom to
        tell so.
        """
        match event:
            case Answered(rank, verb, RankState() as state):
                return [*self._answered(rank, verb, state), *self._told(state)]
            case Answered(rank, verb, RankAwayError() as error):
                return self._missed(rank, verb, error)
            case Answered(rank, verb, RankRefusedError() as error):
                return self._refused(rank, verb, error)
            case Told(state):
                return self._told(state)
            case Saved() if self.stage is Stage.DECIDING:
                self.stage = Stage.DECIDED
                return [*self._ask_all(Verb.COMMIT), *self._landed()]
            case Overdue():
                return self._overdue()
            case Dropped() if self.stage in (Stage.PREPARING, Stage.OFF):
                self.stage = Stage.OFF
                return [Ask(rank, Verb.ABORT) for rank in sorted(self._owed)]
        return []

    # ---- what has happened

    def _answered(self, rank: int, verb: Verb, state: RankState) -> list[Effect]:
        match verb:
            case Verb.PREPARE if self.stage is Stage.PREPARING:
                self._answers[rank] = state
                return self._decided() if self._answers.keys() >= self._question.concerned else []
            case Verb.COMMIT:
                self._uncommitted.discard(rank)
            case Verb.ABORT:
                self._confirmed(rank)
        return []

    def _missed(self, rank: int, verb: Verb, error: RankAwayError) -> list[Effect]:
        self._away[rank] = error
        if verb is Verb.ABORT and isinstance(error, RankGoneError):
            self._confirmed(rank)
            return []
        wanted = {Verb.PREPARE: Stage.PREPARING, Verb.COMMIT: Stage.DECIDED, Verb.ABORT: Stage.OFF}
        return [Ask(rank, verb, again=True)] if wanted.get(verb) is self.stage else []

    def _refused(self, rank: int, verb: Verb, error: RankRefusedError) -> list[Effect]:
        if verb is Verb.ABORT:
            self._confirmed(rank)
        is_told_beside = rank not in self._question.concerned
        if is_told_beside or verb not in (Verb.PREPARE, Verb.COMMIT):
            return []
        return self._failed(error)

    def _told(self, state: RankState) -> list[Effect]:
        rank, epoch = state.rank, self._question.reshape.epoch
        if rank in self._to_ranks:
            self._steps[rank] = state.steps_applied
            (self._idle.discard if state.epoch >= epoch and state.phase in _RUNNING else self._idle.add)(rank)
        if state.failed_epoch == epoch and rank in self._question.concerned:
            self._failures[rank] = state.failed_reason
        if state.promised > self._ballot and self.stage is Stage.OFF:
            self._confirmed(rank)
        return self._landed()

    def _overdue(self) -> list[Effect]:
        if self.stage is Stage.DECIDED:
            return [Ask(rank, Verb.STATUS) for rank in sorted(self._idle & self._question.concerned)]
        if self.stage is not Stage.PREPARING or self._question.reshape.mode is not PlanMode.BOUNDARY:
            return []
        missing = sorted(self._question.concerned - self._answers.keys())
        silent = RankAwayError(f"ranks {missing} did not answer in time")
        return self._failed(next((self._away[rank] for rank in missing if rank in self._away), silent))

    # ---- what follows

    def _decided(self) -> list[Effect]:
        try:
            self.decision = self._question.decide(self._answers)
        except NoAgreementError as error:
            return self._failed(error)
        self.stage = Stage.DECIDING
        return [Save(self.decision)]

    def _landed(self) -> list[Effect]:
        if self.stage is not Stage.DECIDED:
            return []
        if self._failures:
            reasons = [f"rank {rank}: {reason}" for rank, reason in sorted(self._failures.items())]
            return self._failed(RankRefusedError("; ".join(reasons)))
        if self._uncommitted or self._idle:
            return []
        assert self.decision is not None
        self.stage = Stage.OVER
        together = self.decision.steps_applied
        return [Landed(together if together >= 0 else min(self._steps.values()))]

    def _failed(self, error: Exception) -> list[Effect]:
        if self.stage is Stage.DECIDED:
            self.stage = Stage.OVER
            return [Failed(error)]
        if self.stage is Stage.PREPARING:
            self.stage = Stage.OFF
            return [Failed(error)]
        return []

    def _confirmed(self, rank: int) -> None:
        self._owed.discard(rank)
        if self.stage is Stage.OFF and not self._owed:
            self.stage = Stage.OVER

    def _ask_all(self, verb: Verb) -> list[Effect]:
        return [Ask(rank, verb) for rank in sorted(self._question.concerned | self._question.others)]
