"""Who hangs, each told once, and who moves again; of those who take part in the epoch in force."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from evenkeel.services.detector.domain.frames.observation import FrameObservation, RankProgress
from evenkeel.services.detector.domain.processes.hang import Hang, find_hangs


@dataclass(slots=True, eq=False)
class HangWatch:
    """Remembers the complaints about one job's ranks."""

    # Of each rank: its incarnation, and the iteration that it hung in.
    _hung: dict[int, tuple[int, int]] = field(default_factory=dict)
    _members: frozenset[int] = frozenset()

    def members_are(self, ranks: Iterable[int]) -> None:
        """Who holds a position under the epoch in force."""
        self._members = frozenset(ranks)

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
        alive = [one for one in progress if not is_dead(one.rank, one.incarnation)]
        if self._members:
            alive = [one for one in alive if one.rank in self._members or one.epoch > epoch]
        found = []
        for hang in find_hangs(tuple(alive), iteration_seconds=iteration_seconds, epoch=epoch):
            if self._hung.get(hang.rank, (-1, -1))[0] != hang.incarnation:
                self._hung[hang.rank] = (hang.incarnation, hang.iteration)
                found.append(hang)
        return found

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
