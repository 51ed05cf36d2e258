"""From a split of blocks over stages to a better one, block by block, by what the pipeline takes at least."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from services.scheduler.planning.pipeline_bound import PipelineBound

_MAX_STEPS = 24
_BETTER = 1.0 - 1e-9
_ROUNDED = 1.0 + 1e-9


def parts_of(prefix: Sequence[Sequence[float]], borders: Sequence[int]) -> list[float]:
    """Seconds of each stage of a split.

    Args:
        prefix: As in :func:`climbed`.
        borders: Of the split, the outer ones included.
    """
    return [p[stop] - p[start] for p, (start, stop) in zip(prefix, pairwise(borders), strict=True)]


def climbed(
    prefix: Sequence[Sequence[float]],
    inner: Sequence[int],
    forward_part: float,
    num_micro_batches: int,
    transfer_seconds: float,
) -> tuple[float, tuple[int, ...]]:
    """(Least seconds, inner borders) where no block that changes its stage makes the split better any more.

    First blocks leave the stage that takes longest, for anywhere; then those after it for those before it, since
    seconds after that stage count twice.

    Args:
        prefix: ``prefix[s][b]``: seconds of blocks 0 to b - 1, forward and backward, on the devices of stage s.
        inner: Inner borders to start from.
        forward_part: The part of the seconds that is forward.
        num_micro_batches: Of the pipeline, at least 1.
        transfer_seconds: Per transfer between stages.
    """
    bound = PipelineBound(len(prefix), forward_part, 1.0 - forward_part, num_micro_batches, transfer_seconds)
    borders = [0, *inner, len(prefix[0]) - 1]
    seconds, slowest = bound.seconds(parts_of(prefix, borders))
    for _ in range(_MAX_STEPS):
        found, limit = None, seconds * _BETTER
        split = _Split(prefix, borders, bound, limit * _ROUNDED)
        for moves in (split.moves_from(slowest), split.moves_across(slowest)):
            for giver, taker in moves:
                moved = _moved(borders, giver, taker)
                other = bound.seconds(parts_of(prefix, moved), limit)
                if other[0] < limit:
                    found, limit = (*other, moved), other[0]
            if found:
                break
        if found is None:
            break
        seconds, slowest, borders = found
    return seconds, tuple(borders[1:-1])


class _Split:
    """A split, and which blocks may leave their stage in it.

    A block that goes from one stage to another makes those between give one at one end and take one at the other. Most
    takers would last too long then, which is seen without looking at the other stages.

    Args:
        prefix: As in :func:`climbed`.
        borders: Of the split.
        bound: What its pipeline takes at least.
        limit: Seconds that a stage that takes a block may claim for the pipeline.
    """

    def __init__(
        self, prefix: Sequence[Sequence[float]], borders: Sequence[int], bound: PipelineBound, limit: float
    ) -> None:
        self._prefix, self._borders, self._bound, self._limit = prefix, borders, bound, limit
        self._parts = parts_of(prefix, borders)
        *self._before, whole = accumulate([part + bound.round_trip for part in self._parts], initial=0.0)
        self._whole = whole - bound.round_trip

    def moves_from(self, slowest: int) -> Iterator[tuple[int, int]]:
        """(Stage that gives, stage that takes): blocks of the slowest stage."""
        if self._borders[slowest + 1] - self._borders[slowest] > 1:
            yield from [(slowest, taker) for taker in (*self._before_it(slowest, slowest), *self._after_it(slowest))]

    def moves_across(self, slowest: int) -> Iterator[tuple[int, int]]:
        """The same for blocks of stages after the slowest one that go to stages before it."""
        for giver in range(slowest + 1, len(self._parts)):
            if self._borders[giver + 1] - self._borders[giver] > 1:
                yield from [(giver, taker) for taker in self._before_it(giver, slowest)]

    def _before_it(self, giver: int, stop_taker: int) -> list[int]:
        """Stages up to one that can take a block of a later one."""
        borders, of_stage, limit, found = self._borders, self._bound.of_stage, self._limit, []
        more = 0.0  # what the stages after the taker have more in all
        for taker in range(giver, -1, -1):
            seconds_to, start, stop = self._prefix[taker], borders[taker], borders[taker + 1]
            if taker < giver:
                takes = seconds_to[stop + 1] - seconds_to[stop]
                if taker < stop_taker:
                    part, before = self._parts[taker], self._before[taker]
                    if of_stage(taker, part + takes, before, self._whole - before - part + more) < limit:
                        found.append(taker)
                more += takes
            more -= seconds_to[start + 1] - seconds_to[start]
        found.reverse()
        return found

    def _after_it(self, giver: int) -> list[int]:
        """Stages that can take a block of an earlier one."""
        borders, of_stage, limit, found = self._borders, self._bound.of_stage, self._limit, []
        more = 0.0  # what the stages before the taker have more in all
        for taker in range(giver, len(self._parts)):
            seconds_to, start, stop = self._prefix[taker], borders[taker], borders[taker + 1]
            if taker > giver:
                takes = seconds_to[start] - seconds_to[start - 1]
                part, before = self._parts[taker], self._before[taker]
                if of_stage(taker, part + takes, before + more, self._whole - before - part) < limit:
                    found.append(taker)
                more += takes
            more -= seconds_to[stop] - seconds_to[stop - 1]
        return found


def _moved(borders: list[int], giver: int, taker: int) -> list[int]:
    """Borders when one stage has a block less and another one more; what is between changes its blocks."""
    moved = list(borders)
    step = 1 if taker < giver else -1
    for border in range(min(giver, taker) + 1, max(giver, taker) + 1):
        moved[border] += step
    return moved
