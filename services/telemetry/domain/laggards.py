"""Ranks of one job whose samples come when their frames are closed. Pure: the time is passed in.

A loop without collectives goes on while one of its ranks starts over: that rank counts from 0, or from its checkpoint,
and until it has caught up its samples are in no frame: they are in the rollups, and are compared with nobody's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from evenkeel.services.telemetry.domain.observed import ArrivedSample

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
        told: Somebody was told.
    """

    rank: int
    incarnation: int
    started_over: bool
    iteration: int
    behind_iteration: int
    since_seconds: float
    num_samples: int = 0
    told: bool = False


class Laggards:
    """The ranks of one job that are behind, from their first late sample to their first one in time."""

    def __init__(self) -> None:
        self._ranks: dict[int, Laggard] = {}
        self._back: list[Laggard] = []

    def __contains__(self, rank: int) -> bool:
        return rank in self._ranks

    def isdisjoint(self, ranks: Iterable[int]) -> bool:
        """Whether none of these ranks is behind."""
        return self._ranks.keys().isdisjoint(ranks)

    def late(self, sample: ArrivedSample, *, started_over: bool, behind_iteration: int, now_seconds: float) -> None:
        """A sample came too late for its frame; arguments as in :class:`Laggard`."""
        rank, incarnation, iteration = sample.rank, sample.incarnation, sample.iteration
        known = self._ranks.get(rank)
        if known is None or known.incarnation < incarnation:
            known = Laggard(rank, incarnation, started_over, iteration, behind_iteration, now_seconds)
            self._ranks[rank] = known
        known.num_samples += 1
        known.iteration = max(known.iteration, iteration)
        known.behind_iteration = behind_iteration

    def joined(self, rank: int) -> None:
        """A sample came in time."""
        known = self._ranks.pop(rank, None)
        if known is not None and known.told:
            self._back.append(known)

    def all_started_over(self, ranks: Iterable[int]) -> bool:
        """True when each of these ranks, and at least one, is a later process that is behind: the job began again."""
        num_ranks = 0
        for rank in ranks:
            known = self._ranks.get(rank)
            if known is None or not known.started_over:
                return False
            num_ranks += 1
        return num_ranks > 0

    def clear(self) -> None:
        """Joining begins anew: nobody is behind."""
        for rank in list(self._ranks):
            self.joined(rank)

    def behind(self, now_seconds: float) -> list[Laggard]:
        """Those that have been behind for so long that it is no accident, by rank."""
        return [
            each
            for _, each in sorted(self._ranks.items())
            if each.num_samples >= TOLD_AFTER_SAMPLES and now_seconds - each.since_seconds >= TOLD_AFTER_SECONDS
        ]

    def news(self, now_seconds: float) -> tuple[list[Laggard], list[Laggard]]:
        """Who has fallen behind, and who of those is back, since this was asked last; each is told once."""
        fallen = [each for each in self.behind(now_seconds) if not each.told]
        for each in fallen:
            each.told = True
        back, self._back = self._back, []
        return fallen, back
