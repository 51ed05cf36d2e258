"""Newest state of every process of one job's ranks, for whoever waits for ranks to get somewhere."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from evenkeel.layouts.rank_state import RankPhase, RankState


class StateBoard:
    """Filled by Watch streams and answers to calls. Belongs to the event loop's thread.

    Attributes:
        listeners: Told each state that is taken in.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[RankState], None]] = []
        self._states: dict[int, RankState] = {}
        self._changed = asyncio.Event()

    @property
    def states(self) -> Mapping[int, RankState]:
        """Newest state by rank."""
        return self._states

    def phase(self, rank: int, incarnation: int) -> RankPhase | None:
        """What a process of a rank last said that it was doing, or None when none of its words is known."""
        state = self._states.get(rank)
        return None if state is None or state.incarnation != incarnation else state.phase

    def post(self, state: RankState) -> None:
        """Take in a state; one of an earlier incarnation or an earlier epoch than known is dropped."""
        known = self._states.get(state.rank)
        if known is not None and (state.incarnation, state.epoch) < (known.incarnation, known.epoch):
            return
        self._states[state.rank] = state
        self._changed.set()
        for listener in self.listeners:
            listener(state)

    def failure(self, ranks: Iterable[int], epoch: int) -> str:
        """Why some of ``ranks`` could not apply the plan of ``epoch``; empty when none said so."""
        said = [
            f"rank {rank}: {state.failed_reason}"
            for rank in ranks
            if (state := self._states.get(rank)) is not None and state.failed_epoch == epoch
        ]
        return "; ".join(said)

    async def until_running(self, ranks: Iterable[int], epoch: int) -> None:
        """Returns once every rank trains, or has finished, in ``epoch`` or a later one."""
        wanted = tuple(ranks)
        while True:
            self._changed.clear()
            if not self.missing(wanted, epoch):
                return
            await self._changed.wait()

    def missing(self, ranks: Iterable[int], epoch: int) -> tuple[int, ...]:
        """Those of ``ranks`` that are not known to run in ``epoch`` yet."""
        running = (RankPhase.TRAINING, RankPhase.FINISHED)
        return tuple(
            rank
            for rank in ranks
            if (state := self._states.get(rank)) is None or state.epoch < epoch or state.phase not in running
        )
