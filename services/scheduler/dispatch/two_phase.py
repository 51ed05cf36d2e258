"""One plan on its way to the ranks: Prepare all, decide durably, Commit all, wait until all run it.

A flight is one coroutine; cancelling it is how a newer plan replaces it. Before the decision is durable no rank has
changed anything. After it, commits are repeated until every rank has taken one: a rank that does not answer is dead or
will answer, and its verdict cancels the flight. Calls to ranks run concurrently, so a phase takes as long as its
slowest rank.

Every live process of the job hears of every plan, so that none is left with one that is over. Those that neither the
layout in force nor the plan's counts on are told beside the others, and waited for in nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog

from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError, boundary_decision, recovery_decision
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import Decision, RankAwayError, RankCalls, RankRefusedError, Reshape

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightTimes:
    """Deadlines, in seconds.

    Attributes:
        boundary_prepare: All attempts; a healthy rank answers at once, but its threads may be starved for a while.
        recover_prepare: One attempt; a rank parks at its next safe point, and a collective notices within 50 ms.
        commit: One attempt.
        poll: Between two looks at ranks that have not reported on their streams.
    """

    boundary_prepare: float = 3.0
    recover_prepare: float = 10.0
    commit: float = 5.0
    poll: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flight:
    """One plan and everybody it concerns.

    Attributes:
        reshape: The plan.
        model: The job's model.
        epoch: Epoch in force.
        layout: Layout in force.
        layouts: Layout of every decided epoch.
        calls: Calls to each live rank of the layout in force and of the plan's.
        others: Calls to all other live processes of the job.
        board: Newest states.
        times: Deadlines.
    """

    reshape: Reshape
    model: ModelSpec
    epoch: int
    layout: Layout
    layouts: Mapping[int, Layout]
    calls: Mapping[int, RankCalls]
    others: Mapping[int, RankCalls] = field(default_factory=dict)
    board: StateBoard
    times: FlightTimes = FlightTimes()

    async def run(self, decided: Callable[[Decision], Awaitable[None]]) -> int:
        """Take the plan through both phases.

        Args:
            decided: Makes the decision durable; commits go out when it returns.

        Returns:
            The first iteration that runs under the plan.

        Raises:
            NoAgreementError: The ranks' answers do not allow the plan; nothing was decided.
            RankAwayError: Mode BOUNDARY, and a rank did not answer; nothing was decided and the rest was told.
            RankRefusedError: A rank refuses the plan.
        """
        try:
            states = await self._prepare_all()
            decision = self._decide(states)
        except Exception:
            await self._abort_all()
            raise
        await decided(decision)
        return await self.finish(decision)

    async def finish(self, decision: Decision) -> int:
        """Phase two of a decided plan, also after a restart: commits are idempotent.

        Returns:
            The first iteration that runs under the plan.

        Raises:
            RankRefusedError: A rank refuses the plan, or could not carry it out.
        """

        async def commit(calls: RankCalls) -> RankState:
            return await self._commit_patiently(calls, decision)

        async with self._beside(commit):
            await self._on_all(commit)
            await self._until_applied()
        if decision.steps_applied >= 0:
            return decision.steps_applied
        running = [self.board.states[rank].steps_applied for rank in self.reshape.to_layout.ranks]
        return min(running)

    async def until_possible(self, still_wanted: Callable[[], bool]) -> bool:
        """Wait until the ranks' states would allow a plan that was refused because nobody has some slice.

        Args:
            still_wanted: Looked at now and then; False ends the wait.

        Returns:
            Whether they do; False when the wait ended first.
        """
        backoff = Backoff(first_seconds=0.5, longest_seconds=5.0)
        while still_wanted():
            answers = await asyncio.gather(
                *(calls.status(self.times.commit) for calls in self._everybody), return_exceptions=True
            )
            states = {answer.rank: answer for answer in answers if isinstance(answer, RankState)}
            if set(self.reshape.to_layout.ranks) <= states.keys():
                with contextlib.suppress(NoAgreementError):
                    self._decide(states)
                    return True
            await asyncio.sleep(backoff.next_seconds())
        return False

    def _decide(self, states: Mapping[int, RankState]) -> Decision:
        if self.reshape.mode is PlanMode.BOUNDARY:
            return boundary_decision(states, epoch=self.epoch, layout=self.layout, to_layout=self.reshape.to_layout)
        return recovery_decision(states, layouts=self.layouts, to_layout=self.reshape.to_layout, model=self.model)

    async def _prepare_all(self) -> dict[int, RankState]:
        prepare = self._prepare_soon if self.reshape.mode is PlanMode.BOUNDARY else self._prepare_patiently
        async with self._beside(prepare) as others:
            states = await self._on_all(prepare)
        return {**others, **states}

    async def _prepare_soon(self, calls: RankCalls) -> RankState:
        """Nobody waits for a boundary plan: a rank that does not answer for a while ends it."""
        backoff = Backoff(longest_seconds=0.5)
        started = time.monotonic()
        while True:
            left = started + self.times.boundary_prepare - time.monotonic()
            try:
                return await calls.prepare(self.reshape, max(left, 0.1))
            except RankAwayError:
                if left <= 0.5:
                    raise
                await asyncio.sleep(backoff.next_seconds())

    async def _prepare_patiently(self, calls: RankCalls) -> RankState:
        """A survivor that does not answer parks late or is dead too: its verdict ends the wait."""
        backoff = Backoff(longest_seconds=0.5)
        while True:
            try:
                return await calls.prepare(self.reshape, self.times.recover_prepare)
            except RankAwayError as error:
                _log.info("rank did not prepare, trying again", error=str(error))
                await asyncio.sleep(backoff.next_seconds())

    async def _commit_patiently(self, calls: RankCalls, decision: Decision) -> RankState:
        backoff = Backoff(longest_seconds=0.5)
        while True:
            try:
                return await calls.commit(self.reshape, decision, self.times.commit)
            except RankAwayError as error:
                _log.info("rank did not take the commit, trying again", error=str(error))
                await asyncio.sleep(backoff.next_seconds())

    async def _on_all(self, call: Callable[[RankCalls], Awaitable[RankState]]) -> dict[int, RankState]:
        """The same call to everybody at once; the first error cancels the rest."""

        async def one(rank: int, calls: RankCalls) -> None:
            states[rank] = await call(calls)
            self.board.post(states[rank])

        states: dict[int, RankState] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for rank, calls in self.calls.items():
                    group.create_task(one(rank, calls))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return states

    @contextlib.asynccontextmanager
    async def _beside(self, call: Callable[[RankCalls], Awaitable[RankState]]) -> AsyncIterator[dict[int, RankState]]:
        """Meanwhile the same call to the others; gives the answers that have come so far."""

        async def one(rank: int, calls: RankCalls) -> None:
            with contextlib.suppress(RankAwayError, RankRefusedError):
                states[rank] = await call(calls)
                self.board.post(states[rank])

        states: dict[int, RankState] = {}
        tasks = [asyncio.create_task(one(rank, calls)) for rank, calls in self.others.items()]
        try:
            yield states
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _everybody(self) -> tuple[RankCalls, ...]:
        return (*self.calls.values(), *self.others.values())

    async def _abort_all(self) -> None:
        """Best effort: who misses it drops the plan when the next one comes."""
        outcomes = await asyncio.gather(
            *(calls.abort(self.reshape, self.times.commit) for calls in self._everybody), return_exceptions=True
        )
        states = [outcome for outcome in outcomes if isinstance(outcome, RankState)]
        for state in states:
            self.board.post(state)
        _log.info("plan aborted", plan_id=self.reshape.plan_id, not_told=len(outcomes) - len(states))

    async def _until_applied(self) -> None:
        """Until every rank of the new layout runs the new epoch; streams tell, and a poll for those that do not."""
        ranks, epoch = self.reshape.to_layout.ranks, self.reshape.epoch
        while True:
            failure = self.board.failure(self.calls, epoch)
            if failure:
                raise RankRefusedError(failure)
            try:
                async with asyncio.timeout(self.times.poll):
                    await self.board.until_running(ranks, epoch)
                return
            except TimeoutError:
                asked = [self.calls[rank] for rank in self.board.missing(ranks, epoch)]
                answers = await asyncio.gather(
                    *(calls.status(self.times.commit) for calls in asked), return_exceptions=True
                )
                for answer in answers:
                    if isinstance(answer, RankState):
                        self.board.post(answer)
