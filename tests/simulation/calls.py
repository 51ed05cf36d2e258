"""Calls to ranks over a network that delays, loses and cuts off."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from evenkeel.layouts.rank_state import Ballot, RankState
from evenkeel.services.scheduler.dispatch import protocol
from evenkeel.trainer_sdk.control import standing
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from tests.simulation.ranks import SimulatedRank

if TYPE_CHECKING:
    from tests.simulation.world import World


class SimulatedCalls:
    """Calls to one process over a network that delays and loses; see :class:`RankCalls`."""

    def __init__(self, world: "World", key: tuple[int, int]) -> None:
        self._world, self._key = world, key

    async def prepare(self, reshape: protocol.Reshape, timeout_seconds: float) -> RankState:
        plan = _for_ranks(reshape)

        async def ask(rank: SimulatedRank) -> RankState:
            rank.acceptor.prepare(plan)
            rank.changed()
            self._world.happened("prepared", rank)
            while (answer := rank.acceptor.answer(plan)) is None:
                changed = asyncio.Event()
                rank.watchers.append(changed.set)
                try:
                    await changed.wait()
                finally:
                    rank.watchers.remove(changed.set)
            return answer

        return await self._call(ask, timeout_seconds)

    async def commit(self, reshape: protocol.Reshape, decision: protocol.Decision, timeout_seconds: float) -> RankState:
        commit = Commit(
            reshape=_for_ranks(reshape),
            from_epoch=decision.from_epoch,
            from_layout=decision.from_layout,
            sources=decision.sources,
            steps_applied=decision.steps_applied,
            stand_ins=decision.stand_ins,
            from_checkpoint=decision.from_checkpoint,
        )

        async def ask(rank: SimulatedRank) -> RankState:
            if not self._world.history.is_decided(reshape.plan_id):
                self._world.broken.append(f"decided_before_commit: {reshape.plan_id}")
            rank.acceptor.commit(commit)
            rank.changed()
            self._world.happened("committed", rank)
            return rank.acceptor.state

        return await self._call(ask, timeout_seconds)

    async def abort(self, reshape: protocol.Reshape, timeout_seconds: float) -> RankState:
        async def ask(rank: SimulatedRank) -> RankState:
            rank.acceptor.abort(reshape.plan_id, Ballot(reshape.term, reshape.epoch))
            rank.changed()
            return rank.acceptor.state

        return await self._call(ask, timeout_seconds)

    async def status(self, timeout_seconds: float) -> RankState:
        async def ask(rank: SimulatedRank) -> RankState:
            return rank.acceptor.state

        return await self._call(ask, timeout_seconds)

    async def _call(
        self, ask: Callable[[SimulatedRank], Coroutine[Any, Any, RankState]], timeout_seconds: float
    ) -> RankState:
        world, (number, incarnation) = self._world, self._key
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.sleep(world.random.uniform(0.0, 0.02))
                rank = world.ranks.get(number)
                if world.cut_until.get(number, 0.0) > world.loop.now:
                    await asyncio.sleep(timeout_seconds)
                if rank is None or rank.incarnation != incarnation or not rank.alive:
                    raise protocol.RankAwayError(f"rank {number}.{incarnation} is away")
                try:
                    state = await ask(rank)
                except standing.StaleBallotError as stale:
                    raise protocol.StaleBallotError(stale.promised, str(stale)) from stale
                except standing.FinishedError as finished:
                    raise protocol.RankRefusedError(str(finished)) from finished
                await asyncio.sleep(world.random.uniform(0.0, 0.02))
                if world.random.random() < world.scenario.answers_lost or not rank.alive:
                    await asyncio.sleep(timeout_seconds)
                return state
        except TimeoutError as error:
            raise protocol.RankTimeoutError(f"rank {number}.{incarnation}") from error


def _for_ranks(reshape: protocol.Reshape) -> Reshape:
    return Reshape(
        job_id=reshape.job_id,
        plan_id=reshape.plan_id,
        epoch=reshape.epoch,
        mode=ApplyMode(reshape.mode.value),
        to_layout=reshape.to_layout,
        term=reshape.term,
    )
