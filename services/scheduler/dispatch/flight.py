"""One plan's way to the ranks: prepare all, decide, make that durable, commit all, until all run it.

Before the decision is durable no rank has changed anything; after it a rank that does not answer is dead or will
answer, and its verdict ends the flight. Whoever was asked about a plan that comes to nothing is told that it is off,
beside whatever follows: nobody waits for that.

Every live process of the job hears what is decided, so that none is left with a plan that is over. Those that neither
the layout in force nor the plan's counts on are told beside the others, and waited for in nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import structlog

from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.dispatch.agreement import decision_on
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import (
    Decision,
    RankAwayError,
    RankCalls,
    RankGoneError,
    RankRefusedError,
    RankTimeoutError,
)
from evenkeel.services.scheduler.domain.job_state import JobKnowledge

_log = structlog.get_logger(__name__)

Decided = Callable[[Decision], Awaitable[None]]
"""Makes a decision durable; commits go out when it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightTimes:
    """Deadlines, in seconds.

    Attributes:
        boundary_prepare: All attempts; a healthy rank answers at once, but its threads may be starved for a while.
        attempt: The first at anything: among many ranks some answer is lost. Each further one has twice as long.
        longest_attempt: A rank that is starved, or parks at its next safe point only, answers in the end.
        poll: Between two looks at ranks that have not reported on their streams.
    """

    boundary_prepare: float = 3.0
    attempt: float = 1.0
    longest_attempt: float = 10.0
    poll: float = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Flight:
    """One plan on its way: a coroutine, and cancelling it is how a newer plan replaces it.

    Calls to ranks run concurrently, so a phase takes as long as its slowest rank.

    Attributes:
        known: The job that it changes.
        plan: The plan.
        calls: Calls to every live process, by rank.
        board: Newest states.
        spawn: Starts a task of the job, which tells ranks that the plan is off.
        times: Deadlines.
    """

    known: JobKnowledge
    plan: PlanRecord
    calls: Mapping[int, RankCalls]
    board: StateBoard
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    times: FlightTimes = FlightTimes()

    async def run(self, decided: Decided) -> int:
        """Take the plan through both phases.

        Args:
            decided: Makes the decision durable.

        Returns:
            The first iteration that runs under the plan.

        Raises:
            NoAgreementError: The ranks' answers do not allow the plan; nothing was decided.
            RankAwayError: Mode BOUNDARY, and a rank did not answer; nothing was decided.
            RankRefusedError: A rank refuses the plan, or could not carry it out.
        """
        try:
            decision = decision_on(self.known, self.plan, await self._prepared())
        except BaseException:
            self.spawn(self._call_off())
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
        landing = _Landing(self.plan, self._concerned)
        for state in self.board.states.values():
            landing.told(state)
        self.board.listeners.append(landing.told)
        try:
            async with _tasks(self._look_at_the_silent(landing), *self._commits(decision, landing)) as tasks:
                for task in tasks:
                    task.add_done_callback(landing.heed)
                await landing.over
        finally:
            self.board.listeners.remove(landing.told)
        if decision.steps_applied >= 0:
            return decision.steps_applied
        return min(self.board.states[rank].steps_applied for rank in self.plan.layout.ranks)

    @cached_property
    def _concerned(self) -> frozenset[int]:
        """Live ranks of the plan's layout, of that in force, and of any decided since: ranks may have moved there."""
        decided = [layout for epoch, layout in self.known.layouts.items() if epoch >= self.known.epoch]
        return frozenset(self.calls.keys() & {rank for layout in (self.plan.layout, *decided) for rank in layout.ranks})

    async def _prepared(self) -> dict[int, RankState]:
        """What everybody says whom the plan concerns; in mode BOUNDARY each has its time, however often it is asked."""
        ranks = sorted(self._concerned)
        patience_seconds = self.times.boundary_prepare if self.plan.mode is PlanMode.BOUNDARY else None
        asks = [
            self._heard(rank, lambda calls, seconds: calls.prepare(self.plan, seconds), patience_seconds)
            for rank in ranks
        ]
        async with _tasks(*asks) as tasks:
            return dict(zip(ranks, await asyncio.gather(*tasks), strict=True))

    def _commits(self, decision: Decision, landing: "_Landing") -> list[Coroutine[Any, Any, None]]:
        async def commit(rank: int) -> None:
            await self._heard(rank, lambda calls, seconds: calls.commit(self.plan, decision, seconds))
            landing.committed(rank)

        async def tell(rank: int) -> None:
            with suppress(RankGoneError, RankRefusedError):
                await commit(rank)

        return [commit(rank) if rank in self._concerned else tell(rank) for rank in sorted(self.calls)]

    async def _look_at_the_silent(self, landing: "_Landing") -> None:
        async def look(rank: int) -> None:
            with suppress(RankAwayError, RankRefusedError):
                self.board.post(await self.calls[rank].status(self.times.attempt))

        while True:
            await asyncio.sleep(self.times.poll)
            await asyncio.gather(*map(look, sorted(landing.idle & self._concerned)))

    async def _call_off(self) -> None:
        """Until each that was asked has confirmed it, or is gone."""

        async def call_off(rank: int) -> None:
            with suppress(RankGoneError, RankRefusedError):
                await self._heard(rank, lambda calls, seconds: calls.abort(self.plan, seconds))

        await asyncio.gather(*map(call_off, sorted(self._concerned)))
        _log.info("plan aborted", plan_id=self.plan.plan_id)

    async def _heard(
        self, rank: int, ask: Callable[[RankCalls, float], Awaitable[RankState]], patience_seconds: float | None = None
    ) -> RankState:
        """A rank's answer; it is asked again for as long as it is away, or patience lasts."""
        pauses, problem = Backoff(longest_seconds=0.5), RankAwayError(f"rank {rank} did not answer in time")
        seconds = self.times.attempt
        try:
            async with asyncio.timeout(patience_seconds):
                while True:
                    try:
                        state = await ask(self.calls[rank], seconds)
                    except RankGoneError:
                        raise
                    except RankAwayError as error:
                        problem = error
                        _log.info("rank is away", plan_id=self.plan.plan_id, rank=rank, error=str(error))
                        if isinstance(error, RankTimeoutError):
                            seconds = min(2.0 * seconds, self.times.longest_attempt)
                        else:
                            await asyncio.sleep(pauses.next_seconds())
                    else:
                        self.board.post(state)
                        return state
        except TimeoutError:
            raise problem from None


class _Landing:
    """What is missing until a decided plan is in force.

    Attributes:
        over: Done once nothing is; raises why it cannot be carried out.
        idle: Ranks of the plan's layout that are not in its epoch, as far as is known.
    """

    def __init__(self, plan: PlanRecord, concerned: Collection[int]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle = set(plan.layout.ranks)
        self._epoch, self._ranks, self._concerned = plan.epoch, frozenset(plan.layout.ranks), concerned
        self._uncommitted = set(concerned)

    def told(self, state: RankState) -> None:
        """A rank's state is known, by an answer or by its stream."""
        if state.failed_epoch == self._epoch and state.rank in self._concerned:
            self._end(RankRefusedError(f"rank {state.rank}: {state.failed_reason}"))
        if state.epoch >= self._epoch:  # it may have parked again since
            self.idle.discard(state.rank)
            self.committed(state.rank)  # whoever is there has heard it, though the answer was lost
        elif state.rank in self._ranks:
            self.idle.add(state.rank)

    def committed(self, rank: int) -> None:
        """A rank has taken the plan."""
        self._uncommitted.discard(rank)
        if not self._uncommitted and not self.idle:
            self._end(None)

    def heed(self, task: "asyncio.Task[None]") -> None:
        """What one of the flight's tasks raises ends it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
            self.over.exception()  # a newer plan may have come meanwhile: nobody is there to hear it


@asynccontextmanager
async def _tasks(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list["asyncio.Task[Any]"]]:
    """Tasks that end with the block."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
