"""What any few devices take as one stage, for every range of blocks: as fast as whole heads and memory allow.

Devices of one speed and place are interchangeable, so devices side by side, a *cell*, are so many of each kind. Its
heads are dealt by speed. Where memory does not hold that, no shard gets more than one head fewer than the widest had,
and so on, until it does. A cell in which somebody would get nothing is left out: it is the cell without them.
"""

import math

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.planning.levers.balance.splits import Floats, Integers
from evenkeel.planning.levers.balance.tensor_width import deal


@compiled
def cell_table(
    counts: Integers,
    speeds: Floats,
    widths: Integers,
    seconds: Floats,
    slowdowns: Floats,
    granules: int,
    held: Floats,
    most_held: float,
    by_share: bool,
) -> tuple[Floats, Integers]:
    """Seconds of a micro-batch of cells with ranges of blocks, and how wide their widest shards may be.

    Args:
        counts: [cells, kinds] devices of each kind.
        speeds: [kinds], 1 = healthy.
        widths: [blocks] granules that a block can be cut into at most.
        seconds: [4, blocks] of a block on one healthy device: forward, backward up to the gradient that is sent on, the
            rest of the backward; and its collectives both ways, of two shards.
        slowdowns: [shards + 1] what a stage of so many shards is taken to be slower by.
        granules: Of the blocks that count most: what is dealt to shards.
        held: [lives, blocks] of a block in all shards together, with so many more micro-batches under way.
        most_held: By one shard.
        by_share: Whether a shard holds its share of a block, and not what the cut in whole granules gives it.

    Returns:
        [3, cells, lives, first, stop]: seconds forward and of both parts of the backward, infinite where nothing fits.
        [cells, lives, first, stop]: granules of the widest shard that are allowed.
    """
    num_cells, num_lives, num_blocks = len(counts), len(held), len(widths)
    found = np.full((3, num_cells, num_lives, num_blocks, num_blocks + 1), math.inf)
    allowed = np.zeros((num_cells, num_lives, num_blocks, num_blocks + 1), np.int64)
    own, shares = np.empty(len(slowdowns)), np.empty(len(slowdowns), np.int64)
    parts, full = np.empty((num_blocks, len(slowdowns))), np.empty(len(slowdowns))
    for cell in range(num_cells):
        count = 0
        for kind in range(len(speeds)):
            for _ in range(counts[cell, kind]):
                own[count] = speeds[kind]
                count += 1
        total = max(granules, count)
        most, is_done = total, False
        while not is_done and most * count >= total:
            is_done = True
            deal(own[:count], total, most, shares[:count])
            if shares[:count].min() == 0:
                is_done = most_held == math.inf
                most = shares[:count].max() - 1
                continue
            for block in range(num_blocks):
                _cut(widths[block], shares[:count], total, parts[block])
            for live in range(num_lives):
                for first in range(num_blocks):
                    ahead = back = weights = 0.0
                    full[:count] = 0.0
                    for block in range(first, num_blocks):
                        slowness, fits = 0.0, True
                        for t in range(count):
                            slowness = max(slowness, parts[block, t] / own[t])
                            held_part = shares[t] / total if by_share else parts[block, t]
                            full[t] += held[live, block] * held_part
                            fits = fits and full[t] <= most_held
                        slowness *= slowdowns[count]
                        exchange = seconds[3, block] * (count - 1) / count
                        ahead += seconds[0, block] * slowness + exchange
                        back += seconds[1, block] * slowness + exchange
                        weights += seconds[2, block] * slowness
                        if not fits:
                            is_done = False
                            break
                        if found[0, cell, live, first, block + 1] == math.inf:
                            found[0, cell, live, first, block + 1] = ahead
                            found[1, cell, live, first, block + 1] = back
                            found[2, cell, live, first, block + 1] = weights
                            allowed[cell, live, first, block + 1] = most
            most = shares[:count].max() - 1
    return found, allowed


@compiled
def _cut(width: int, shares: Integers, total: int, parts: Floats) -> None:
    """The part of a block that each shard has, with the rounding of :func:`evenkeel.layouts.cut.cut`."""
    running, border = 0, 0
    for t in range(len(shares)):
        running += shares[t]
        stop = (2 * running * width + total) // (2 * total)
        parts[t] = (stop - border) / width if width > 1 else 1.0
        border = stop
