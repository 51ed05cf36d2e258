"""Interleaved 1F1B: every cell holds several stages that are a whole round of cells apart."""

from functools import lru_cache

from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Order, Turn


@lru_cache(maxsize=256)
def interleaved_orders(num_cells: int, num_chunks: int, num_micro_batches: int) -> tuple[Order, ...]:
    """The order of each cell when cell c of p holds stages c, c + p, c + 2p ... (Megatron-LM, arXiv 2104.04473).

    Micro-batches go through a cell's stages in groups of p, so that a pipeline fills p stages at a time: the idle time
    at both ends shrinks by the number of stages a cell, and each micro-batch crosses as many more borders. Where the
    quota is no multiple of p, the order is that of the next one without the micro-batches that are too many.

    Args:
        num_cells: Cells p, each at least 1.
        num_chunks: Stages a cell, at least 1.
        num_micro_batches: The replica's quota.
    """
    padded = -(-num_micro_batches // num_cells) * num_cells
    places = [
        (group + offset, chunk)
        for group in range(0, padded, num_cells)
        for chunk in range(num_chunks)
        for offset in range(num_cells)
    ]
    orders = []
    for cell in range(num_cells):
        forwards = [Turn(Op.FORWARD, place, chunk * num_cells + cell) for place, chunk in places]
        backwards = [Turn(Op.BACKWARD, place, (num_chunks - 1 - chunk) * num_cells + cell) for place, chunk in places]
        warm_up = min(len(places), 2 * (num_cells - 1 - cell) + (num_chunks - 1) * num_cells)
        order = forwards[:warm_up]
        for behind, forward in enumerate(forwards[warm_up:]):
            order += [forward, backwards[behind]]
        order += backwards[len(places) - warm_up :]
        orders.append(tuple([turn for turn in order if turn.place < num_micro_batches]))
    return tuple(orders)
