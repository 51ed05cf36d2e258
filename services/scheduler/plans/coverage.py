"""Whether living ranks hold the whole model between them."""

from collections.abc import Collection

from evenkeel.layouts.cut import cut
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec


def uncovered_blocks(model: ModelSpec, layout: Layout, holders: Collection[int]) -> tuple[int, ...]:
    """Blocks of which no rank in ``holders`` has some part under ``layout``: they are lost from memory.

    Args:
        model: For the width in which blocks are cut.
        layout: Layout whose slices are held.
        holders: Ranks that hold their slices.
    """
    lost = []
    for block, cost in enumerate(model.blocks):
        held: set[int] = set()
        for replica in layout.replicas:
            for stage in replica.stages:
                if not stage.first_block <= block < stage.stop_block:
                    continue
                borders = cut(cost.max_width, 1, stage.shares)
                for t, rank in enumerate(stage.ranks):
                    if rank in holders:
                        held.update(range(borders[t], borders[t + 1]) if cost.max_width > 1 else (0,))
        if len(held) < cost.max_width:
            lost.append(block)
    return tuple(lost)
