"""One plan between take-off and landing: whom it counts on, what is recorded of it, and how it is taken back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanState
from evenkeel.services.scheduler.adapters.store import Change
from evenkeel.services.scheduler.dispatch.protocol import Decision
from evenkeel.services.scheduler.dispatch.two_phase import Flight
from evenkeel.services.scheduler.domain.job_state import PlanInFlight, RankInfo
from evenkeel.services.scheduler.plan_log import PlanLog
from evenkeel.services.scheduler.plan_records import decision_to_document


class NotProposedError(Exception):
    """That a plan was proposed is not in the history, because recording it failed; so it ends without a word there."""


class Airborne:
    """A plan on its way to the ranks. Belongs to the event loop's thread.

    Attributes:
        flight: The plan as the job's state has it.
        record: The plan as the history has it.
        dispatch: Who takes it to the ranks.
        is_decided: It is, or was meant to be, in the history that it was decided: no rank can go back from it.
        task: Carries it; set by whoever starts it.
    """

    def __init__(
        self,
        flight: PlanInFlight,
        record: PlanRecord,
        dispatch: Flight,
        log: PlanLog,
        *,
        participants: Sequence[RankInfo],
        proposal: asyncio.Task[None] | None = None,
        decision: Decision | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            flight: The plan as the job's state has it.
            record: The plan as the history has it.
            dispatch: Who takes it to the ranks.
            log: Where its states are recorded.
            participants: The processes that it goes to.
            proposal: Records it, beside the Prepares that are on their way; the decision waits for both.
            decision: What was decided before a restart, instead of a proposal.
        """
        assert (proposal is None) != (decision is None), "a plan is proposed or decided"
        self.flight, self.record, self.dispatch = flight, record, dispatch
        self.is_decided = decision is not None
        self.task: asyncio.Task[None] | None = None
        self._log = log
        self._participants = {(info.rank, info.incarnation) for info in participants}
        self._proposal = proposal
        self._decision = decision

    def is_intact(self, ranks: Mapping[int, RankInfo]) -> bool:
        """Whether all processes that it goes to are alive and those of their ranks.

        Args:
            ranks: The process of each rank that counts now.
        """
        return self._participants <= {(info.rank, info.incarnation) for info in ranks.values() if info.alive}

    async def fly(self, decided: Callable[[], Awaitable[None]]) -> int:
        """Take it to the ranks, through both phases or through the second.

        Args:
            decided: Called when the decision is durable, before any rank hears of it.

        Returns:
            The first iteration that runs under it.

        Raises:
            NoAgreementError, RankAwayError, RankRefusedError: As :meth:`Flight.run`; that it was proposed is recorded.
        """

        async def decide(decision: Decision) -> None:
            await self._proposed()
            self.is_decided = True
            document = decision_to_document(decision, self.flight.mode)
            await self._log.entered(self.record, PlanState.COMMITTED, decision=document)
            await decided()

        if self._decision is not None:
            return await self.dispatch.finish(self._decision)
        try:
            return await self.dispatch.run(decide)
        finally:
            await self._proposed()  # written any later, it would say of the job what is over

    async def ground(self, why: str) -> None:
        """Stop it: an undecided plan is aborted, a decided one stands until it is overtaken; durable on return.

        Raises:
            NotProposedError: As for :meth:`take_back`.
        """
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await self.take_back(why)

    async def take_back(self, why: str, more: Sequence[Change] = ()) -> None:
        """It flies no more: as :meth:`ground`, with ``more`` beside the end of an undecided plan.

        Raises:
            NotProposedError: Recording that it was proposed failed.
        """
        if self.is_decided:
            self._log.overtaken.append(self.record.plan_id)
            return
        if self._proposal is not None:
            # Its cancellation must not look like the caller's own.
            await asyncio.wait([self._proposal])
            if self._proposal.cancelled():
                raise NotProposedError(self.record.plan_id)
            self._proposal.result()
        await self._log.entered(self.record, PlanState.ABORTED, detail=why, more=more)

    async def _proposed(self) -> None:
        if self._proposal is not None:
            await asyncio.shield(self._proposal)
