"""Blocks dealt over given stages so that the fullest device is as empty as can be: whether a replica fits at all."""

from collections.abc import Sequence
from itertools import pairwise

from evenkeel.layouts.cut import shard_parts
from evenkeel.layouts.layout import Stage
from evenkeel.layouts.model import ModelSpec

_Cell = tuple[tuple[int, ...], tuple[int, ...]]
"""Ranks and shares of one stage."""

_STEPS = 12


def stages_within(
    model: ModelSpec, cells: Sequence[_Cell], device_bytes: float, scale: float = 1.0
) -> tuple[Stage, ...] | None:
    """Stages of these ranks of which no device holds more than a limit, as even as can be; None when there are none.

    Each stage takes as many blocks as fit, which finds a split whenever one exists; the least limit with which that
    works is then searched for. As in :mod:`evenkeel.planning.costs.memory`, stage s of p holds the
    activations of p - s micro-batches, here however few the replica has.

    Args:
        model: Sizes of the blocks.
        cells: Ranks and shares of each stage.
        device_bytes: Memory of a device.
        scale: Size of the largest micro-batches, 1 = as registered.
    """
    if not 0 < len(cells) <= len(model.blocks):
        return None
    sizes = _sizes(model, cells, scale)
    borders = _greedy(sizes, device_bytes)
    if borders is None:
        return None
    low, high = 0.0, device_bytes
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        found = _greedy(sizes, middle)
        if found is None:
            low = middle
        else:
            high, borders = middle, found
    return tuple(
        Stage(first_block=first, stop_block=stop, ranks=ranks, shares=shares)
        for (first, stop), (ranks, shares) in zip(pairwise(borders), cells, strict=True)
    )


def _sizes(model: ModelSpec, cells: Sequence[_Cell], scale: float) -> list[list[float]]:
    """``[s][b]``: bytes of block b on the fullest device of stage s."""
    widths, sizes = {block.max_width for block in model.blocks}, []
    for s, (_, shares) in enumerate(cells):
        live = (len(cells) - s) * scale
        parts = {width: max(shard_parts(width, shares)) for width in widths}
        sizes.append([block.held_bytes(live) * parts[block.max_width] for block in model.blocks])
    return sizes


def _greedy(sizes: list[list[float]], limit: float) -> list[int] | None:
    """Borders of stages that each take as many blocks as fit and as leave one for every later stage."""
    num_blocks, borders = len(sizes[0]), [0]
    for s, row in enumerate(sizes):
        stop, most, used = borders[-1], num_blocks - (len(sizes) - s - 1), 0.0
        while stop < most and used + row[stop] <= limit:
            used += row[stop]
            stop += 1
        if stop == borders[-1]:
            return None
        borders.append(stop)
    return borders if borders[-1] == num_blocks else None
