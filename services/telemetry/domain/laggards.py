"""Ranks of one job whose samples come when their frames are closed. Pure: the time is passed in.

A loop without collectives goes on while one of its ranks starts over: that rank counts from 0, or from its checkpoint,
and until it has caught up its samples are in no frame: they are in the rollups, and are compared with nobody's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from evenkeel.numeric.arrays import Ints

TOLD_AFTER_SAMPLES = 3
TOLD_AFTER_SECONDS = 10.0


@dataclass(slots=True)
class Laggard:
    """A rank that is behind.

    Attributes:
        rank: Rank.
        incarnation: Its process.
        started_over: It is a later process than the one that its peers knew.
        iteration: Newest iteration of it.
        behind_iteration: Newest iteration of which the frame was closed then.
        since_seconds: When its first late sample came, Unix seconds.
        num_samples: Late samples in a row.
    """

    rank: int
    incarnation: int
    started_over: bool
    iteration: int
    behind_iteration: int
    since_seconds: float
    num_samples: int = 0


class Laggards:
    """The ranks of one job that are behind, from their first late sample to their first one in time."""

    def __init__(self) -> None:
        self._ranks: dict[int, Laggard] = {}
        # Somebody was told.
        self._told: list[Laggard] = []

    def late(self, one: Laggard) -> None:
        """An iteration of a rank came too late for its frame."""
        known = self._ranks.get(one.rank)
        if known is None or known.incarnation < one.incarnation:
            known = self._ranks[one.rank] = one
        known.num_samples += 1
        known.iteration = max(known.iteration, one.iteration)
        known.behind_iteration = one.behind_iteration

    def joined(self, ranks: Ints) -> None:
        """Something of these ranks came in time."""
        for rank in self._ranks.keys() & set(ranks.tolist()) if self._ranks else ():
            del self._ranks[rank]

    def all_started_over(self, ranks: Iterable[int]) -> bool:
        """True when each of these ranks, and at least one, is a later process that is behind: the job began again."""
        known = [self._ranks.get(rank) for rank in ranks]
        return bool(known) and all(one is not None and one.started_over for one in known)

    def clear(self) -> None:
        """Joining begins anew: nobody is behind."""
        self._ranks.clear()

    def behind(self, now_seconds: float) -> list[Laggard]:
        """Those that have been behind for so long that it is no accident, by rank."""
        return [
            each
            for _, each in sorted(self._ranks.items())
            if each.num_samples >= TOLD_AFTER_SAMPLES and now_seconds - each.since_seconds >= TOLD_AFTER_SECONDS
        ]

    def news(self, now_seconds: float) -> tuple[list[Laggard], list[Laggard]]:
        """Who has fallen behind, and who of those is back, since this was asked last; each is told once."""
        back = [each for each in self._told if each.rank not in self._ranks]
        still = [each for each in self._told if self._ranks.get(each.rank) is each]
        fallen = [each for each in self.behind(now_seconds) if each not in still]
        self._told = still + fallen
        return fallen, back
