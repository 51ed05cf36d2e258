"""Calls to ranks over a network that delays, loses, doubles and cuts off; stands for the client over gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from evenkeel.history.records import PlanRecord
from evenkeel.layouts.rank_state import Ballot, RankState
from evenkeel.services.scheduler.dispatch import protocol
from evenkeel.trainer_sdk.control import refusals
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from tests.simulation.ranks import SimulatedRank
from tests.simulation.virtual_loop import PROCESS

if TYPE_CHECKING:
    from tests.simulation.world import World

Reply = Callable[[RankState | Exception], None]


class SimulatedClient:
    """One process of a rank; see :class:`~evenkeel.services.scheduler.adapters.ranks.client.RankClient`."""

    def __init__(self, *, job_id: str, rank: int, incarnation: int, address: str, leadership: Any, **_: Any) -> None:
        process = PROCESS.get()
        assert process is not None, "clients belong to a scheduler"
        self.rank, self.incarnation, self.address = rank, incarnation, address
        self._world: World = process.world
        self._job = self._world.jobs[job_id]
        self._leadership = leadership
        self._waiting: set[asyncio.Future[RankState]] = set()
        self._is_closed = False

    async def prepare(self, plan: PlanRecord, timeout_seconds: float) -> RankState:
        reshape = self._reshape(plan)
        self._require_leadership()

        def arrive(rank: SimulatedRank, reply: Reply) -> None:
            def look() -> None:
                try:
                    answer: RankState | Exception | None = rank.acceptor.answer(reshape)
                except (refusals.StaleBallotError, refusals.FinishedError) as error:
                    answer = error
                if answer is not None:
                    rank.watchers.remove(look)
                    rank.callers.remove(reply)
                    reply(answer)

            rank.check(reshape.to_layout)
            rank.acceptor.prepare(reshape)
            rank.watchers.append(look)
            rank.callers.append(reply)
            rank.changed()
            self._job.happened("prepared", rank)

        return await self._call(arrive, timeout_seconds)

    async def commit(self, plan: PlanRecord, decision: protocol.Decision, timeout_seconds: float) -> RankState:
        commit = Commit(
            reshape=self._reshape(plan),
            from_epoch=decision.from_epoch,
            from_layout=decision.from_layout,
            sources=decision.sources,
            steps_applied=decision.steps_applied,
            stand_ins=decision.stand_ins,
            from_checkpoint=decision.from_checkpoint,
        )

        def arrive(rank: SimulatedRank, reply: Reply) -> None:
            if not self._world.history.is_decided(plan.plan_id):
                self._world.broken.append(f"decided_before_commit: {plan.plan_id}")
            rank.check(commit.reshape.to_layout)
            rank.acceptor.commit(commit)
            rank.changed()
            self._job.happened("committed", rank)
            reply(rank.acceptor.state)

        return await self._call(arrive, timeout_seconds)

    async def abort(self, plan: PlanRecord, timeout_seconds: float) -> RankState:
        self._require_leadership()

        def arrive(rank: SimulatedRank, reply: Reply) -> None:
            rank.acceptor.abort(plan.plan_id, Ballot(self._leadership.term, plan.epoch))
            rank.changed()
            reply(rank.acceptor.state)

        return await self._call(arrive, timeout_seconds)

    async def interrupt(self, epoch: int, *, leave: bool, timeout_seconds: float) -> None:
        self._require_leadership()

        def arrive(rank: SimulatedRank, reply: Reply) -> None:
            rank.acceptor.interrupt(epoch, leave=leave)
            reply(rank.acceptor.state)
            rank.changed()
            if leave:
                self._job.leaves(rank)

        await self._call(arrive, timeout_seconds)

    async def status(self, timeout_seconds: float) -> RankState:
        return await self._call(lambda rank, reply: reply(rank.acceptor.state), timeout_seconds)

    async def watch(self) -> AsyncIterator[RankState]:
        said: asyncio.Queue[RankState | Exception] = asyncio.Queue()
        self._arrive(lambda rank, reply: rank.stream_to(reply), said.put_nowait, is_stream=True)
        while True:
            state = await said.get()
            if isinstance(state, Exception):
                raise _as_told(state)
            yield state

    async def close(self) -> None:
        self._is_closed = True
        for waiting in self._waiting:
            _set(waiting, protocol.RankGoneError(f"rank {self.rank}.{self.incarnation}"))

    def _reshape(self, plan: PlanRecord) -> Reshape:
        return Reshape(
            job_id=plan.job_id,
            plan_id=plan.plan_id,
            epoch=plan.epoch,
            mode=ApplyMode(plan.mode.value),
            to_layout=plan.layout,
            term=self._leadership.term,
        )

    def _require_leadership(self) -> None:
        if not self._leadership.holds:
            raise protocol.RankAwayError(f"rank {self.rank} is not asked: not in charge")

    async def _call(self, arrive: Callable[[SimulatedRank, Reply], None], timeout_seconds: float) -> RankState:
        if self._is_closed:
            raise protocol.RankGoneError(f"rank {self.rank}.{self.incarnation}")
        world = self._world
        answer: asyncio.Future[RankState] = world.loop.create_future()

        def reply(said: RankState | Exception) -> None:
            if not world.loses_message():
                world.after(world.random.uniform(0.0, 0.02), lambda: _set(answer, said))

        for _ in range(2 if world.happens(world.scenario.messages_doubled) else 1):
            if not world.loses_message():
                self._arrive(arrive, reply)
        self._waiting.add(answer)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except TimeoutError as error:
            raise protocol.RankTimeoutError(f"rank {self.rank}.{self.incarnation}") from error
        finally:
            self._waiting.discard(answer)

    def _arrive(self, arrive: Callable[[SimulatedRank, Reply], None], reply: Reply, *, is_stream: bool = False) -> None:
        """A message gets to the process, when it runs; or the connection breaks. A stream's waits for the network."""
        world, term, key = self._world, self._leadership.term, (self.rank, self.incarnation)

        def there() -> None:
            rank = self._job.processes.get(key)
            if (left := self._job.cut_until.get(key, 0.0) - world.loop.now) > 0.0:
                world.disturb()
                if is_stream:
                    world.after(left, there)
                return
            if rank is None or not rank.alive:
                reply(protocol.RankAwayError(f"rank {self.rank}.{self.incarnation} is away"))
            elif rank.is_stopped:
                rank.when_it_runs(there)
            else:
                try:
                    self._job.reached(rank, term)
                    arrive(rank, reply)
                except (refusals.StaleBallotError, refusals.FinishedError, ValueError) as error:
                    reply(error)

        world.after(world.random.uniform(0.0, 0.02), there)


def _set(answer: "asyncio.Future[RankState]", said: RankState | Exception) -> None:
    if answer.done():
        return
    if isinstance(said, RankState):
        answer.set_result(said)
        return
    answer.set_exception(_as_told(said))
    answer.exception()  # whoever waited may be dead


def _as_told(error: Exception) -> Exception:
    if isinstance(error, refusals.StaleBallotError):
        return protocol.StaleBallotError(error.promised, str(error))
    refused = isinstance(error, refusals.FinishedError | ValueError)
    return protocol.RankRefusedError(str(error)) if refused else error
