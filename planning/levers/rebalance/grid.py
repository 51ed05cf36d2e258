"""Ranks of each stage of each replica, and what a layout becomes with them."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.repair import spread_quotas, with_replicas

Grid = Sequence[Sequence[Sequence[int]]]
"""Ranks of each stage of each replica; a stage or a replica may have none, and is left out of the layout then."""


def grid_of(layout: Layout) -> list[list[tuple[int, ...]]]:
    """The ranks of a layout."""
    return [[stage.ranks for stage in replica.stages] for replica in layout.replicas]


def with_grid(layout: Layout, grid: Grid, live: Collection[int], evened: Collection[int] = ()) -> Layout:
    """The layout with other ranks in its stages; live ranks that are in none are its standbys.

    Blocks stay where they are in replicas that keep their number of stages, and shares in groups that stay together.
    Micro-batches of replicas without ranks are spread over the others.

    Args:
        layout: Where to start from.
        grid: Ranks of its stages.
        live: All ranks that there are.
        evened: Replicas whose blocks are dealt by the number of ranks all the same.
    """
    shares = {stage.ranks: stage.shares for replica in layout.replicas for stage in replica.stages}
    rows = [[tuple(cell) for cell in row if cell] for row in grid]
    kept = [(d, replica, rows[d]) for d, replica in enumerate(layout.replicas) if rows[d]]
    quotas = spread_quotas([replica.num_micro_batches for _, replica, _ in kept], layout.num_micro_batches)
    replicas = []
    for (d, was, row), quota in zip(kept, quotas, strict=True):
        if len(row) != len(was.stages) or d in evened:
            stages = even_stages(row, layout.num_blocks)
        else:
            stages = tuple(
                [
                    stage
                    if cell == stage.ranks
                    else replace(stage, ranks=cell, shares=shares.get(cell, (1,) * len(cell)))
                    for stage, cell in zip(was.stages, row, strict=True)
                ]
            )
        is_same = quota == was.num_micro_batches and stages == was.stages
        replicas.append(was if is_same else Replica(stages=stages, num_micro_batches=quota))
    return with_replicas(layout, replicas, live)


def even_stages(cells: Sequence[Sequence[int]], num_blocks: int) -> tuple[Stage, ...]:
    """Stages of these ranks with blocks in proportion to their number; the layer split does better later."""
    weight = [len(cell) for cell in cells]
    borders, done = [0], 0
    for s, each in enumerate(weight):
        done += each
        stop = round(num_blocks * done / sum(weight))
        borders.append(min(max(stop, borders[-1] + 1), num_blocks - (len(cells) - s - 1)))
    return tuple(
        Stage(first_block=borders[s], stop_block=borders[s + 1], ranks=tuple(cell), shares=(1,) * len(cell))
        for s, cell in enumerate(cells)
    )
