"""The ranks that reported in a job's newest settled epoch or since. Pure.

Columns by rank instead of an object a rank: what thousands of samples say of their ranks is noted at once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence


class Members:
    """Which process each of them is, how far it has come, and how many frames in a row it missed."""

    def __init__(self) -> None:
        """Starts with none."""
        self._incarnations: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._missed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._incarnations)

    def __iter__(self) -> Iterator[int]:
        return iter(self._incarnations)

    def incarnation(self, rank: int) -> int | None:
        """Which process of the rank is a member; None if none is."""
        return self._incarnations.get(rank)

    def note(self, rank: int, incarnation: int, iteration: int) -> None:
        """A process brought an iteration; it is a member from now on unless a later process of its rank is one."""
        known = self._incarnations.get(rank)
        if known is None or known < incarnation:
            self._incarnations[rank] = incarnation
            self._newest[rank] = iteration
        else:
            self._newest[rank] = max(self._newest[rank], iteration)
        self._missed.pop(rank, None)

    def note_all(self, newest: Mapping[int, int]) -> None:
        """Members that missed nothing lately brought iterations, the newest of each by its rank."""
        self._newest.update(newest)

    def remove(self, rank: int) -> None:
        """A member ended."""
        for column in (self._incarnations, self._newest, self._missed):
            column.pop(rank, None)

    def clear(self) -> None:
        """Nobody is a member."""
        for column in (self._incarnations, self._newest, self._missed):
            column.clear()

    def miss(self, ranks: Iterable[int], iteration: int) -> None:
        """A frame closed without these ranks: the members among them that are not further on have missed it."""
        for rank in ranks:
            newest = self._newest.get(rank)
            if newest is not None and newest < iteration:
                self._missed[rank] = self._missed.get(rank, 0) + 1

    def waited_for(self, max_missed: int) -> set[int]:
        """Those that missed fewer frames in a row than this."""
        waited_for = set(self._incarnations)
        waited_for.difference_update(rank for rank, missed in self._missed.items() if missed >= max_missed)
        return waited_for

    def num_known(self, ranks: Sequence[int], incarnations: Sequence[int]) -> int:
        """How many of these processes, from the first one on, are members that missed nothing lately."""
        known: list[int | None] = list(map(self._incarnations.get, ranks))
        num_known = len(ranks)
        if known != incarnations:
            num_known = next(at for at, each in enumerate(known) if each != incarnations[at])
        if not self._missed.keys().isdisjoint(ranks):
            num_known = next((at for at, rank in enumerate(ranks[:num_known]) if rank in self._missed), num_known)
        return num_known

    def are_before(self, ranks: Iterable[int], iteration: int) -> bool:
        """Whether none of these members has brought this iteration or a later one."""
        return max(map(self._newest.__getitem__, ranks)) < iteration
