"""Who hangs, each told once, and who moves again; of those who take part in the epoch in force."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from evenkeel.services.detector.domain.hang import Hang, find_hangs
from evenkeel.services.detector.domain.observation import FrameObservation, RankProgress


class HangWatch:
    """Remembers the complaints about one job's ranks."""

    __slots__ = ("_hung", "_members")

    def __init__(self) -> None:
        # Of each rank: its incarnation, and the iteration that it hung in.
        self._hung: dict[int, tuple[int, int]] = {}
        self._members: Collection[int] = ()

    def members_are(self, ranks: Iterable[int]) -> None:
        """Who holds a position under the epoch in force."""
        self._members = _compact(ranks)

    def observe(
        self,
        progress: Sequence[RankProgress],
        *,
        is_dead: Callable[[int, int], bool],
        iteration_seconds: float,
        epoch: int,
    ) -> list[Hang]:
        """Takes a picture of progress and returns who was found to hang.

        Args:
            progress: Where each rank was when last heard.
            is_dead: Whether a rank's incarnation has ended.
            iteration_seconds: Usual seconds of an iteration; 0 while that is not known.
            epoch: The epoch in force.
        """
        # Nobody waits for the dead, nor for those who hold no position.
        alive = [one for one in progress if not is_dead(one.rank, one.incarnation) and self._takes_part(one, epoch)]
        found = []
        for hang in find_hangs(tuple(alive), iteration_seconds=iteration_seconds, epoch=epoch):
            if self._hung.get(hang.rank, (-1, -1))[0] != hang.incarnation:
                self._hung[hang.rank] = (hang.incarnation, hang.iteration)
                found.append(hang)
        return found

    @property
    def is_anybody_hung(self) -> bool:
        """Somebody was found to hang and has not moved since."""
        return bool(self._hung)

    def moving_again(self, frame: FrameObservation) -> list[tuple[int, int, int]]:
        """Hung ranks that finished an iteration after all; later incarnations only end the complaint.

        Returns:
            Rank, incarnation, and the iteration that it hung in.
        """
        if not self._hung:
            return []
        found = []
        for rank, incarnation in zip(frame.ranks.tolist(), frame.incarnations.tolist(), strict=True):
            hung = self._hung.get(rank)
            if hung is None or incarnation < hung[0]:
                continue
            if incarnation > hung[0] or frame.iteration >= hung[1]:
                del self._hung[rank]
            if incarnation == hung[0] and frame.iteration >= hung[1]:
                found.append((rank, incarnation, hung[1]))
        return found

    def died(self, rank: int) -> None:
        """What was said of its process is history."""
        self._hung.pop(rank, None)

    def _takes_part(self, one: RankProgress, epoch: int) -> bool:
        return not self._members or one.rank in self._members or one.epoch > epoch

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        return {
            "hung": sorted((rank, *what) for rank, what in self._hung.items()),
            "members": sorted(self._members),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._hung = {rank: (incarnation, iteration) for rank, incarnation, iteration in state["hung"]}
        self._members = _compact(state["members"])


def _compact(ranks: Iterable[int]) -> Collection[int]:
    """A set of ranks; mostly they are all from one to another, which a range says in no memory."""
    known = frozenset(ranks)
    every = range(min(known, default=0), max(known, default=-1) + 1)
    return every if len(every) == len(known) else known
