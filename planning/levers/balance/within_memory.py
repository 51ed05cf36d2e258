"""Widths and splits of one replica that are fastest of those that its devices' memory holds.

By speed alone the fastest device gets the widest shard, and that may be more than it holds. So a stage's widths are
those by speed, clipped at what a device holds, what is clipped dealt on to the others by the same rule; how much that
is hangs on the blocks. A table per stage says how long each range of blocks takes at least and with which widths; a
split of least sum under a cap on the slowest stage is then dynamic programming over (stage, border), as in
:mod:`evenkeel.planning.levers.balance.layer_split`. Asked only where widths or a split by speed alone do
not fit.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.cut import shard_parts
from evenkeel.layouts.layout import Replica, Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.schedules import live_activations
from evenkeel.planning.levers.balance.tensor_width import best_widths
from evenkeel.planning.situation import Situation

_Floats = npt.NDArray[np.float64]
_Cut = tuple[tuple[int, ...], tuple[int, ...]]
"""Places of the shards that are kept, and their shares."""

_EXHAUSTIVE_WORK = 4000
_MAX_POINTS = 32
_NUM_COMPARED = 3
_SLACK = 1.1
_EPSILON = 1e-9


def fastest_within(
    situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str, *, widths: bool, splits: bool
) -> tuple[Stage, ...] | None:
    """Stages of these ranks, none of whose devices holds more than it may; None when there are none.

    Args:
        situation: The question; it has a memory limit.
        stages: Who works together, in this order.
        quota: Micro-batches of the replica.
        schedule: Name of the schedule.
        widths: Whether shares may become others, and slow ranks be left out.
        splits: Whether blocks may change stages.
    """
    tables = [
        _Table(situation, stage, live_activations(schedule, s, len(stages), quota), widths=widths)
        for s, stage in enumerate(stages)
    ]
    num_blocks = stages[-1].stop_block
    ways: list[tuple[int, ...]] = [tuple([stage.stop_block for stage in stages[:-1]])]
    if splits and len(stages) > 1:
        if math.comb(num_blocks - 1, len(stages) - 1) * len(stages) * max(1, quota) <= _EXHAUSTIVE_WORK:
            ways = list(combinations(range(1, num_blocks), len(stages) - 1))
        else:
            ways = [_climbed(situation, tables, way, quota, schedule) for way in _promising(tables, quota)]
    best, best_seconds = None, math.inf
    for way in ways:
        parts = _parts(tables, (0, *way, num_blocks))
        if parts.max() == math.inf or situation.least_makespan(parts, quota, schedule, best_seconds) >= best_seconds:
            continue
        shape = tuple([t.stage(i, j) for t, (i, j) in zip(tables, pairwise((0, *way, num_blocks)), strict=True)])
        taken = situation.makespan(shape, quota, schedule)
        if taken < best_seconds and not situation.replica_excess_bytes(_replica(shape, quota), schedule):
            best, best_seconds = shape, taken
    return best


def _replica(shape: tuple[Stage, ...], quota: int) -> Replica:
    return Replica(stages=shape, num_micro_batches=quota)


class _Table:
    """What each range of blocks takes on one stage's devices.

    Attributes:
        seconds: ``[first][stop]``, of one micro-batch both ways with the fastest cut that fits; infinite where none is.
    """

    def __init__(self, situation: Situation, stage: Stage, live: int, *, widths: bool) -> None:
        assert situation.device_bytes is not None
        self._stage = stage
        speeds = tuple([situation.throughputs[rank] for rank in stage.ranks])
        self._cuts = list(_cuts(stage, speeds, situation.cost.main_width)) if widths else []
        self._cuts = list(dict.fromkeys([(tuple(range(len(speeds))), stage.shares), *self._cuts]))
        sizes = _sizes(situation.cost.model, live * situation.largest_scale)
        later = np.triu(np.ones((len(situation.cost.model.blocks) + 1,) * 2, dtype=bool), 1)
        each = []
        for kept, shares in self._cuts:
            to = situation.cost.seconds_to_block(shares, tuple([speeds[t] for t in kept]))
            fits = later & (_most_held(sizes, shares) <= situation.device_bytes)
            each.append(np.where(fits, to[None, :] - to[:, None], np.inf))
        stacked = np.stack(each)
        self._fastest = stacked.argmin(axis=0)
        self.seconds: _Floats = stacked.min(axis=0)

    def stage(self, first: int, stop: int) -> Stage:
        """The stage with a range of blocks; the given one where that is it."""
        was = self._stage
        kept, shares = self._cuts[int(self._fastest[first, stop])]
        ranks = tuple([was.ranks[t] for t in kept])
        if (was.first_block, was.stop_block, was.ranks, was.shares) == (first, stop, ranks, shares):
            return was
        return replace(was, first_block=first, stop_block=stop, ranks=ranks, shares=shares)


def _cuts(stage: Stage, speeds: tuple[float, ...], granules: int) -> Iterator[_Cut]:
    """Cuts by speed of the fastest so many shards, none wider than each width that can matter."""
    fastest_first = sorted(range(len(speeds)), key=lambda t: (-speeds[t], stage.ranks[t]))
    for count in range(len(speeds), 0, -1):
        chosen = sorted(fastest_first[:count])
        own = tuple([speeds[t] for t in chosen])
        most = max(granules, count)
        while most * count >= max(granules, count):
            found = best_widths(max(granules, count), own, most)
            divisor = math.gcd(*found)
            yield (
                tuple([t for t, width in zip(chosen, found, strict=True) if width]),
                tuple([width // divisor for width in found if width]),
            )
            most = max(found) - 1


def _sizes(model: ModelSpec, live: float) -> dict[int, _Floats]:
    """Of the blocks of each width, bytes of blocks 0 to b - 1 as ``[b]``; as in ``memory.replica_peaks``."""
    return {
        width: np.cumsum([0.0, *[b.held_bytes(live) * (b.max_width == width) for b in model.blocks]])
        for width in {block.max_width for block in model.blocks}
    }


def _most_held(sizes: dict[int, _Floats], shares: tuple[int, ...]) -> _Floats:
    """Bytes of the fullest shard of each range of blocks, ``[first][stop]``."""
    rows = np.zeros((len(shares), len(next(iter(sizes.values())))))
    for width, to in sizes.items():
        rows += np.array(shard_parts(width, shares))[:, None] * to[None, :]
    held: _Floats = (rows[:, None, :] - rows[:, :, None]).max(axis=0)
    return held


def _parts(tables: Sequence[_Table], borders: Sequence[int]) -> _Floats:
    return np.array([table.seconds[i, j] for table, (i, j) in zip(tables, pairwise(borders), strict=True)])


def _promising(tables: Sequence[_Table], quota: int) -> list[tuple[int, ...]]:
    """Inner borders of splits that few others beat in both sum and maximum, best by sum + (m - 1) max first."""
    weight, cap, best = max(0, quota - 1), math.inf, math.inf
    points: list[tuple[float, tuple[int, ...]]] = []
    while len(points) < _MAX_POINTS and (inner := _least_sum(tables, cap)) is not None:
        parts = _parts(tables, (0, *inner, len(tables[0].seconds) - 1))
        total, slowest = float(parts.sum()), float(parts.max())
        points.append((total + weight * slowest, inner))
        best = min(best, points[-1][0])
        if not weight:
            break
        cap = min(slowest * (1.0 - _EPSILON), (best * _SLACK - total) / weight)
    return [inner for _, inner in sorted(points)[:_NUM_COMPARED]]


def _least_sum(tables: Sequence[_Table], cap: float) -> tuple[int, ...] | None:
    """Inner borders of the split of least sum in which no stage lasts longer than ``cap``; None when none does."""
    totals = np.full(len(tables[0].seconds), np.inf)
    totals[0] = 0.0
    came: list[npt.NDArray[np.intp]] = []
    for table in tables:
        each = totals[:, None] + np.where(table.seconds <= cap, table.seconds, np.inf)
        came.append(each.argmin(axis=0))
        totals = each.min(axis=0)
    stop, inner = len(totals) - 1, []
    if totals[stop] == np.inf:
        return None
    for starts in came[:0:-1]:
        stop = int(starts[stop])
        inner.append(stop)
    return tuple(reversed(inner))


def _climbed(
    situation: Situation, tables: Sequence[_Table], inner: tuple[int, ...], quota: int, schedule: str
) -> tuple[int, ...]:
    """The split after single blocks have changed stages as long as the closed form of the pipeline's time falls."""
    last = len(tables[0].seconds) - 1
    best = situation.least_makespan(_parts(tables, (0, *inner, last)), quota, schedule)
    better = best > 0.0
    while better:
        better = False
        for s in range(len(inner)):
            for step in (-1, 1):
                moved = (*inner[:s], inner[s] + step, *inner[s + 1 :])
                borders = (0, *moved, last)
                if borders[s] >= moved[s] or moved[s] >= borders[s + 2]:
                    continue
                parts = _parts(tables, borders)
                if parts.max() == math.inf:
                    continue
                found = situation.least_makespan(parts, quota, schedule, best)
                if found < best * (1.0 - _EPSILON):
                    inner, best, better = moved, found, True
    return inner
