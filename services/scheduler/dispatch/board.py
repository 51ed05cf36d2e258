"""Newest state of every process of one job's ranks, for whoever waits for ranks to get somewhere."""

from collections.abc import Callable, Mapping

from evenkeel.layouts.rank_state import RankState


class StateBoard:
    """Filled by Watch streams and answers to calls. Belongs to the event loop's thread.

    Attributes:
        listeners: Told each state that is taken in.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[RankState], None]] = []
        self._states: dict[int, RankState] = {}

    @property
    def states(self) -> Mapping[int, RankState]:
        """Newest state by rank."""
        return self._states

    def post(self, state: RankState) -> None:
        """Take in a state; one of an earlier incarnation or an earlier epoch than known is dropped."""
        known = self._states.get(state.rank)
        if known is not None and (state.incarnation, state.epoch) < (known.incarnation, known.epoch):
            return
        self._states[state.rank] = state
        for listener in list(self.listeners):
            listener(state)
