"""One plan's way to the ranks as a machine: what happens goes in, whom to ask comes out. No clock, no task, no wait.

Prepare all, decide, make that durable, Commit all, until all run it. Before the decision is durable no rank has changed
anything; after it a rank that does not answer is dead or will answer, and its verdict ends the run. Whoever was asked
about a plan that comes to nothing is owed the word that it is off: such a run is over when all of them have had it.

Every live process of the job hears of every plan, so that none is left with one that is over. Those that neither the
layout in force nor the plan's counts on are told beside the others, and waited for in nothing.
"""

from enum import StrEnum
from typing import NamedTuple

from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.rank_state import Ballot, RankState
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError
from evenkeel.services.scheduler.dispatch.protocol import Decision, RankAwayError, RankGoneError, RankRefusedError
from evenkeel.services.scheduler.dispatch.question import Question


class Stage(StrEnum):
    """How far a plan is."""

    PREPARING = "preparing"
    DECIDING = "deciding"
    DECIDED = "decided"
    OFF = "off"
    OVER = "over"


class Verb(StrEnum):
    """What a rank is asked."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"
    STATUS = "status"


class Ask(NamedTuple):
    """To be done: ask a rank; ``again`` after a pause, because it was away."""

    rank: int
    verb: Verb
    again: bool = False


class PlanRun:
    """One plan between its first question to a rank and its end.

    All methods return whom to ask; what comes too late leads to nothing.

    Attributes:
        stage: How far it is.
        decision: What is decided, once it is; while it is DECIDING, to be made durable.
        end: The first iteration under the plan once everybody runs it; or why it comes to nothing, or cannot be carried
            out. None = neither is known.
    """

    def __init__(self, question: Question, decision: Decision | None = None) -> None:
        """A run that begins, or goes on after a restart.

        Args:
            question: What it changes.
            decision: What is durably decided already.
        """
        self.stage = Stage.PREPARING if decision is None else Stage.DECIDED
        self.decision = decision
        self.end: int | Exception | None = None
        self._question = question
        self._owed = set(question.concerned | question.others)
        self._ballot = Ballot(question.reshape.term, question.reshape.epoch)
        self._answers: dict[int, RankState] = {}
        self._away: dict[int, RankAwayError] = {}
        self._uncommitted = set(question.concerned)
        self._steps: dict[int, int] = {}
        self._to_ranks = frozenset(question.reshape.to_layout.ranks)
        self._idle = set(self._to_ranks)
        self._failures: dict[int, str] = {}

    # ---- what happens

    def begin(self) -> list[Ask]:
        """It begins."""
        return self._ask_all(Verb.PREPARE if self.stage is Stage.PREPARING else Verb.COMMIT)

    def answered(self, rank: int, verb: Verb, answer: RankState | RankAwayError | RankRefusedError) -> list[Ask]:
        """A rank's answer to what it was asked: its state, or why there is none."""
        match answer:
            case RankState():
                self._did(rank, verb, answer)
                self.told(answer)
            case RankAwayError():
                return self._missed(rank, verb, answer)
            case RankRefusedError():
                self._refused(rank, verb, answer)
        return []

    def told(self, state: RankState) -> list[Ask]:
        """A rank's state is known, by an answer or by its stream."""
        rank, epoch = state.rank, self._question.reshape.epoch
        if rank in self._to_ranks:
            self._steps[rank] = state.steps_applied
            (self._idle.discard if state.epoch >= epoch else self._idle.add)(rank)  # it may have parked again since
        if state.epoch >= epoch:
            self._uncommitted.discard(rank)  # whoever is there has heard it, though the answer was lost
        if state.failed_epoch == epoch and rank in self._question.concerned:
            self._failures[rank] = state.failed_reason
        if state.promised > self._ballot and self.stage is Stage.OFF:
            self._confirmed(rank)
        self._land()
        return []

    def saved(self) -> list[Ask]:
        """The decision is durable."""
        self.stage = Stage.DECIDED
        self._land()
        return self._ask_all(Verb.COMMIT)

    def overdue(self) -> list[Ask]:
        """Ranks have had their time to answer, or have not been heard of for a while."""
        if self.stage is Stage.DECIDED:
            return [Ask(rank, Verb.STATUS) for rank in sorted(self._idle & self._question.concerned)]
        if self.stage is Stage.PREPARING and self._question.reshape.mode is PlanMode.BOUNDARY:
            missing = sorted(self._question.concerned - self._answers.keys())
            silent = RankAwayError(f"ranks {missing} did not answer in time")
            self._fail(next((self._away[rank] for rank in missing if rank in self._away), silent))
        return []

    def dropped(self) -> list[Ask]:
        """Nobody wants it any more: unless it is decided it is OFF, and whoever was asked is to be told so."""
        if self.stage not in (Stage.PREPARING, Stage.OFF):
            return []
        self.stage = Stage.OFF
        return [Ask(rank, Verb.ABORT) for rank in sorted(self._owed)]

    # ---- what follows

    def _did(self, rank: int, verb: Verb, state: RankState) -> None:
        match verb:
            case Verb.PREPARE if self.stage is Stage.PREPARING:
                self._answers[rank] = state
                if self._answers.keys() >= self._question.concerned:
                    self._decide()
            case Verb.COMMIT:
                self._uncommitted.discard(rank)
            case Verb.ABORT:
                self._confirmed(rank)

    def _missed(self, rank: int, verb: Verb, error: RankAwayError) -> list[Ask]:
        self._away[rank] = error
        if verb is Verb.ABORT and isinstance(error, RankGoneError):
            self._confirmed(rank)
            return []
        wanted = {Verb.PREPARE: Stage.PREPARING, Verb.COMMIT: Stage.DECIDED, Verb.ABORT: Stage.OFF}
        return [Ask(rank, verb, again=True)] if wanted.get(verb) is self.stage else []

    def _refused(self, rank: int, verb: Verb, error: RankRefusedError) -> None:
        if verb is Verb.ABORT:
            self._confirmed(rank)
        elif verb is not Verb.STATUS and rank in self._question.concerned:
            self._fail(error)

    def _decide(self) -> None:
        try:
            self.decision = self._question.decide(self._answers)
        except NoAgreementError as error:
            self._fail(error)
        else:
            self.stage = Stage.DECIDING

    def _land(self) -> None:
        if self.stage is not Stage.DECIDED:
            return
        if self._failures:
            reasons = [f"rank {rank}: {reason}" for rank, reason in sorted(self._failures.items())]
            self._fail(RankRefusedError("; ".join(reasons)))
        elif not self._uncommitted and not self._idle:
            assert self.decision is not None
            self.stage, together = Stage.OVER, self.decision.steps_applied
            self.end = together if together >= 0 else min(self._steps.values())

    def _fail(self, error: Exception) -> None:
        if self.stage in (Stage.PREPARING, Stage.DECIDED):
            self.stage, self.end = Stage.OFF if self.stage is Stage.PREPARING else Stage.OVER, error

    def _confirmed(self, rank: int) -> None:
        self._owed.discard(rank)
        if self.stage is Stage.OFF and not self._owed:
            self.stage = Stage.OVER

    def _ask_all(self, verb: Verb) -> list[Ask]:
        return [Ask(rank, verb) for rank in sorted(self._question.concerned | self._question.others)]
