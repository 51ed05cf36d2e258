"""How the blocks of a stage are best cut over its ranks, for every range of blocks that it might have.

Shards in proportion to the speed of their devices are fastest; slow ranks are left out where they would only hold the
others up. By speed alone the fastest device gets the widest shard, and that may be more than it holds: then widths are
clipped at what a device holds, and what is clipped is dealt on to the others by the same rule. How much that is hangs
on the blocks, so which cut is the best is kept in a table.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.cut import shard_parts
from evenkeel.layouts.layout import Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.numeric.compiled import compiled
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.levers.balance.splits import Floats, Integers
from evenkeel.planning.levers.balance.tensor_width import best_widths
from evenkeel.planning.situation import Situation

_BETTER = 1.0 - 1e-9

_Cut = tuple[tuple[int, ...], tuple[int, ...]]
"""Places of the shards that are kept, and their shares."""


class Cuts(NamedTuple):
    """The best cuts of one stage.

    Attributes:
        seconds: ``[first][stop]``, of one micro-batch both ways with the fastest cut that fits; infinite where none is.
        fastest: ``[first][stop]``, which cut that is; the given one unless another one is faster.
        cuts: All that were looked at, the given one first.
    """

    seconds: Floats
    fastest: Integers
    cuts: tuple[_Cut, ...]

    def stage(self, was: Stage, blocks: tuple[int, int]) -> Stage:
        """The stage that they are of with a range of blocks; itself where that is it."""
        cut = int(self.fastest[blocks])
        if cut == 0 and blocks == (was.first_block, was.stop_block):
            return was
        kept, shares = self.cuts[cut]
        ranks = tuple([was.ranks[t] for t in kept])
        return Stage(first_block=blocks[0], stop_block=blocks[1], ranks=ranks, shares=shares)


def cuts_of(situation: Situation, stage: Stage, live: int | None, *, widths: bool) -> Cuts:
    """Those of a stage that holds the activations of so many micro-batches.

    Args:
        situation: The question.
        stage: Whose ranks and shares count, not its blocks.
        live: Micro-batches; None = whatever a device holds does not matter.
        widths: Whether shares may become others, and slow ranks be left out.
    """
    speeds = tuple([situation.speeds[rank] for rank in stage.ranks])
    asked = speeds, stage.shares, None if situation.device_bytes is None else live, widths
    return situation.looks.once("cuts", asked, find=lambda: _cuts_of(situation, *asked))


def best_stage(situation: Situation, stage: Stage) -> Stage:
    """The stage with the best widths for its live ranks, whatever they hold; some may be left out."""
    return cuts_of(situation, stage, None, widths=True).stage(stage, (stage.first_block, stage.stop_block))


def _cuts_of(
    situation: Situation, speeds: tuple[float, ...], shares: tuple[int, ...], live: int | None, widths: bool
) -> Cuts:
    cost, given = situation.cost, (tuple(range(len(speeds))), shares)
    by_speed = _by_speed(cost, speeds, shares, clipped=live is not None) if widths else ()
    cuts = tuple(dict.fromkeys([given, *by_speed]))
    to = np.array([cost.seconds_to_block(own, tuple([speeds[t] for t in kept])) for kept, own in cuts])
    fits = np.zeros((0, 0, 0), np.bool_)
    if live is not None:
        sizes = _sizes(cost.model, live * situation.largest_scale)
        fits = np.stack([_most_held(sizes, own) <= (situation.device_bytes or math.inf) for _, own in cuts])
    seconds, fastest = _fastest(to, fits)
    return Cuts(seconds=seconds, fastest=fastest, cuts=cuts)


@compiled
def _fastest(to: Floats, fits: npt.NDArray[np.bool_]) -> tuple[Floats, Integers]:
    """(Seconds, cut) that is fastest for each range of blocks, ``[first, stop]``; of equal ones the first.

    Args:
        to: [cuts, borders] seconds of the blocks before each border.
        fits: [cuts, borders, borders] whether memory holds a range; empty where all fit.
    """
    num_cuts, num_borders = to.shape
    seconds = np.full((num_borders, num_borders), math.inf)
    fastest = np.zeros((num_borders, num_borders), np.int64)
    for cut in range(num_cuts):
        for first in range(num_borders):
            for stop in range(first + 1, num_borders):
                taken = to[cut, stop] - to[cut, first]
                if taken < seconds[first, stop] * _BETTER and (not len(fits) or fits[cut, first, stop]):
                    seconds[first, stop], fastest[first, stop] = taken, cut
    return seconds, fastest


def _by_speed(cost: CostModel, speeds: tuple[float, ...], shares: tuple[int, ...], *, clipped: bool) -> Iterator[_Cut]:
    """Cuts by speed of the fastest so many shards, also none wider than each width that can matter if wanted."""
    granules, num_blocks = cost.main_width, len(cost.model.blocks)
    if len(set(speeds)) == len(set(shares)) == 1 and granules % len(speeds) == 0:
        return  # equal shards of equal devices, without a rest
    least, whole = cost.range_seconds(0, num_blocks, shares, speeds), cost.healthy_seconds(0, num_blocks)
    fastest_first = sorted(range(len(speeds)), key=lambda t: -speeds[t])
    for count in range(len(speeds), 0, -1):
        chosen = sorted(fastest_first[:count])
        own = tuple([speeds[t] for t in chosen])
        # However they are cut, so few do not get faster as a whole; a range of blocks that are not sharded may.
        is_hopeless = whole >= least * sum(own)
        most = number = max(granules, count)
        while most * count >= number:
            widths = best_widths(number, own, most)
            divisor = math.gcd(*widths)
            kept = tuple([t for t, width in zip(chosen, widths, strict=True) if width])
            cut = tuple([width // divisor for width in widths if width])
            least = min(least, cost.range_seconds(0, num_blocks, cut, tuple([speeds[t] for t in kept])))
            yield kept, cut
            if not clipped or is_hopeless:
                break
            most = max(widths) - 1


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
