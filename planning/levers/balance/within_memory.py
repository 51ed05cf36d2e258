"""Widths and splits of one replica that are fastest of those that its devices' memory holds.

By speed alone the fastest device gets the widest shard, and that may be more than it holds. So a stage's widths are
those by speed, clipped at what a device holds, what is clipped dealt on to the others by the same rule; how much that
is hangs on the blocks. A table per stage says how long each range of blocks takes at least and with which widths, and
splits are sought in these tables. Asked only where widths or a split by speed alone do not fit.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.cut import shard_parts
from evenkeel.layouts.layout import Replica, Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.schedules import live_activations
from evenkeel.planning.levers.balance.layer_split import likely_splits
from evenkeel.planning.levers.balance.splits import Floats, parts_of
from evenkeel.planning.levers.balance.tensor_width import best_widths
from evenkeel.planning.situation import Situation

_Cut = tuple[tuple[int, ...], tuple[int, ...]]
"""Places of the shards that are kept, and their shares."""


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
        _table_of(situation, stage, live_activations(schedule, s, len(stages), quota), widths=widths)
        for s, stage in enumerate(stages)
    ]
    seconds = np.stack([table.seconds for table in tables])
    ways = [(0, *[stage.stop_block for stage in stages])]
    if splits and len(stages) > 1:
        ways = likely_splits(situation, seconds, quota, schedule)
    best, best_seconds = None, math.inf
    for way in ways:
        parts = parts_of(seconds, np.array(way))
        if parts.max() == math.inf or situation.least_makespan(parts, quota, schedule, best_seconds) >= best_seconds:
            continue
        shape = tuple(map(_stage, stages, tables, pairwise(way)))
        taken, replica = situation.makespan(shape, quota, schedule), Replica(stages=shape, num_micro_batches=quota)
        if taken < best_seconds and not situation.replica_excess_bytes(replica, schedule):
            best, best_seconds = shape, taken
    return best


class _Table(NamedTuple):
    """What each range of blocks takes on one stage's devices.

    Attributes:
        seconds: ``[first][stop]``, of one micro-batch both ways with the fastest cut that fits; infinite where none is.
        fastest: ``[first][stop]``, which cut that is.
        cuts: All that were looked at.
    """

    seconds: Floats
    fastest: npt.NDArray[np.intp]
    cuts: tuple[_Cut, ...]


def _table_of(situation: Situation, stage: Stage, live: int, *, widths: bool) -> _Table:
    """That of a stage that holds the activations of so many micro-batches."""
    speeds = tuple([situation.speeds[rank] for rank in stage.ranks])
    return situation.looks.once(
        "table", speeds, stage.shares, live, widths, find=lambda: _table(situation, speeds, stage.shares, live, widths)
    )


def _table(situation: Situation, speeds: tuple[float, ...], shares: tuple[int, ...], live: int, widths: bool) -> _Table:
    cost = situation.cost
    by_speed = _cuts(speeds, cost.main_width) if widths else ()
    cuts = tuple(dict.fromkeys([(tuple(range(len(speeds))), shares), *by_speed]))
    sizes = _sizes(cost.model, live * situation.largest_scale)
    later = np.triu(np.ones((len(cost.model.blocks) + 1,) * 2, dtype=bool), 1)
    each = []
    for kept, own in cuts:
        to = cost.seconds_to_block(own, tuple([speeds[t] for t in kept]))
        fits = later & (_most_held(sizes, own) <= (situation.device_bytes or math.inf))
        each.append(np.where(fits, to[None, :] - to[:, None], np.inf))
    stacked = np.stack(each)
    return _Table(seconds=stacked.min(axis=0), fastest=stacked.argmin(axis=0), cuts=cuts)


def _stage(was: Stage, table: _Table, blocks: tuple[int, int]) -> Stage:
    """The stage with a range of blocks; the given one where that is it."""
    kept, shares = table.cuts[int(table.fastest[blocks])]
    ranks = tuple([was.ranks[t] for t in kept])
    found = Stage(first_block=blocks[0], stop_block=blocks[1], ranks=ranks, shares=shares)
    return was if found == was else found


def _cuts(speeds: tuple[float, ...], granules: int) -> Iterator[_Cut]:
    """Cuts by speed of the fastest so many shards, none wider than each width that can matter."""
    fastest_first = sorted(range(len(speeds)), key=lambda t: -speeds[t])
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


def _sizes(model: ModelSpec, live: float) -> dict[int, Floats]:
    """Of the blocks of each width, bytes of blocks 0 to b - 1 as ``[b]``; as in ``memory.replica_peaks``."""
    return {
        width: np.cumsum([0.0, *[b.held_bytes(live) * (b.max_width == width) for b in model.blocks]])
        for width in {block.max_width for block in model.blocks}
    }


def _most_held(sizes: dict[int, Floats], shares: tuple[int, ...]) -> Floats:
    """Bytes of the fullest shard of each range of blocks, ``[first][stop]``."""
    rows = np.zeros((len(shares), len(next(iter(sizes.values())))))
    for width, to in sizes.items():
        rows += np.array(shard_parts(width, shares))[:, None] * to[None, :]
    held: Floats = (rows[:, None, :] - rows[:, :, None]).max(axis=0)
    return held
