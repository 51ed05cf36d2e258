"""Carries out what a plan's run asks for: calls to ranks, pauses, and the word that it was decided.

A flight is one coroutine; cancelling it is how a newer plan replaces it. Calls to ranks run concurrently, so a phase
takes as long as its slowest rank. Whoever is owed the word that a plan is off gets it beside, and nobody waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import structlog

from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.plan_run import Ask, PlanRun, Stage, Verb
from evenkeel.services.scheduler.dispatch.protocol import Decision, RankAwayError, RankCalls, RankRefusedError
from evenkeel.services.scheduler.dispatch.question import Question

_log = structlog.get_logger(__name__)

Decided = Callable[[Decision], Awaitable[None]]
"""Makes a decision durable; commits go out when it returns."""

Event = Callable[[], list[Ask]]
"""Tells the run what has happened."""


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
    commit: float = 1.0
    poll: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flight:
    """One plan on its way to everybody it concerns.

    Attributes:
        question: What the plan changes, and whom it concerns.
        calls: Calls to all these, and to all others that are told.
        board: Newest states.
        spawn: Starts a task of the job, which tells ranks that the plan is off.
        times: Deadlines.
    """

    question: Question
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
        run = PlanRun(self.question)
        try:
            return await self._landed(run, decided)
        finally:
            run.dropped()
            if run.stage is Stage.OFF:
                self.spawn(self._tell_that_it_is_off(run))

    async def finish(self, decision: Decision) -> int:
        """Phase two of a decided plan, also after a restart: commits are idempotent.

        Returns:
            The first iteration that runs under the plan.

        Raises:
            RankRefusedError: A rank refuses the plan, or could not carry it out.
        """
        return await self._landed(PlanRun(self.question, decision), None)

    async def _landed(self, run: PlanRun, decided: Decided | None) -> int:
        async with _Desk(self, run) as desk:
            for state in self.board.states.values():
                run.told(state)
            asks = run.begin()
            while run.end is None:
                desk.ask(asks)
                if run.stage is Stage.DECIDING:
                    assert decided, "what goes on after a restart is decided"
                    assert run.decision, "nothing else is to be made durable"
                    await decided(run.decision)
                    asks = run.saved()
                else:
                    asks = (await desk.next_event())()
        if isinstance(run.end, Exception):
            raise run.end
        return run.end

    async def _tell_that_it_is_off(self, run: PlanRun) -> None:
        """Until each has confirmed it, knows of a newer plan, or is gone."""
        async with _Desk(self, run) as desk:
            desk.ask(run.dropped())
            while run.stage is not Stage.OVER:
                desk.ask((await desk.next_event())())
        _log.info("plan aborted", plan_id=self.question.reshape.plan_id)


class _Desk:
    """What is on its way to and from the ranks of one run; all of it ends with the block."""

    def __init__(self, flight: Flight, run: PlanRun) -> None:
        self._inbox: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._flight, self._run = flight, run
        self._asks: dict[tuple[int, Verb], asyncio.Task[None]] = {}
        self._pauses: dict[tuple[int, Verb], Backoff] = {}
        self._stage, self._due_seconds = Stage.OVER, 0.0

    async def __aenter__(self) -> Self:
        self._flight.board.listeners.append(self._told)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._flight.board.listeners.remove(self._told)
        tasks = [task for task in self._asks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _told(self, state: RankState) -> None:
        self._inbox.put_nowait(partial(self._run.told, state))

    def ask(self, asks: Iterable[Ask]) -> None:
        """Ask ranks, unless that is on its way already."""
        for ask in asks:
            earlier = self._asks.get((ask.rank, ask.verb))
            if earlier is None or earlier.done() or ask.again:
                self._asks[ask.rank, ask.verb] = asyncio.create_task(self._answered(ask))

    async def next_event(self) -> Event:
        """What happens next; that nothing does for as long as the stage may take happens too."""
        now = asyncio.get_running_loop().time()
        if self._run.stage is not self._stage:
            self._stage = self._run.stage
            self._due_seconds = now + self._patience_seconds
        try:
            async with asyncio.timeout_at(self._due_seconds):
                event = await self._inbox.get()
        except TimeoutError:
            self._due_seconds = now + self._patience_seconds
            return self._run.overdue
        if isinstance(event, Exception):
            raise event
        return event

    @property
    def _patience_seconds(self) -> float:
        times = self._flight.times
        return times.boundary_prepare if self._stage is Stage.PREPARING else times.poll

    async def _answered(self, ask: Ask) -> None:
        if ask.again:
            pause = self._pauses.setdefault((ask.rank, ask.verb), Backoff(longest_seconds=0.5))
            await asyncio.sleep(pause.next_seconds())
        answer: RankState | RankAwayError | RankRefusedError
        try:
            answer = await self._call(self._flight.calls[ask.rank], ask.verb)
        except (RankAwayError, RankRefusedError) as error:
            answer = error
            _log.info("rank did not do as asked", asked=str(ask.verb), error=str(error))
        except Exception as error:  # whoever waits for events raises it
            self._inbox.put_nowait(error)
            return
        self._inbox.put_nowait(partial(self._run.answered, ask.rank, ask.verb, answer))
        if isinstance(answer, RankState):
            self._flight.board.post(answer)

    def _call(self, calls: RankCalls, verb: Verb) -> Awaitable[RankState]:
        reshape, times = self._flight.question.reshape, self._flight.times
        match verb:
            case Verb.PREPARE:
                is_boundary = reshape.mode is PlanMode.BOUNDARY
                return calls.prepare(reshape, times.boundary_prepare if is_boundary else times.recover_prepare)
            case Verb.COMMIT:
                assert self._run.decision is not None, "nobody is told of a plan that is not decided"
                return calls.commit(reshape, self._run.decision, times.commit)
            case Verb.ABORT:
                return calls.abort(reshape, times.commit)
            case Verb.STATUS:
                return calls.status(times.commit)
