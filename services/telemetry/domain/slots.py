"""A number for each process of a job, from 0 in the order of their coming: its row in somebody's columns. Pure."""

import numpy as np

from evenkeel.numeric.arrays import Ints
from evenkeel.numeric.compiled import compiled

_LEAST_CELLS = 256
_SPREAD = 0x9E3779B97F4A7C15


class Slots:
    """Numbers of processes; thousands are looked up in one compiled step."""

    def __init__(self) -> None:
        """Starts with none."""
        self._processes: Ints = np.zeros((_LEAST_CELLS // 4, 2), dtype=np.int64)
        self._cells: Ints = np.full(_LEAST_CELLS, -1, dtype=np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def process(self, slot: int) -> tuple[int, int]:
        """Rank and incarnation of one of them."""
        rank, incarnation = self._processes[slot].tolist()
        return rank, incarnation

    def of(self, ranks: Ints, incarnations: Ints) -> Ints:
        """Numbers of some processes, of each its own; whoever is new gets the next one."""
        slots, done = np.empty(len(ranks), dtype=np.int64), 0
        ranks, incarnations = np.ascontiguousarray(ranks), np.ascontiguousarray(incarnations)
        while True:
            done, self._size = _find(ranks, incarnations, self._processes, self._cells, self._size, slots, done)
            if done == len(ranks):
                return slots
            self._grow()

    def _grow(self) -> None:
        self._cells = np.full(4 * len(self._cells), -1, dtype=np.int64)
        known = self._processes[: self._size]
        self._processes = np.zeros((len(self._cells) // 4, 2), dtype=np.int64)
        placed = np.empty(self._size, dtype=np.int64)
        ranks, incarnations = np.ascontiguousarray(known[:, 0]), np.ascontiguousarray(known[:, 1])
        _find(ranks, incarnations, self._processes, self._cells, 0, placed, 0)


@compiled
def _find(
    ranks: Ints, incarnations: Ints, processes: Ints, cells: Ints, size: int, slots: Ints, row: int
) -> tuple[int, int]:
    """Fills ``slots`` from ``row`` on until all are filled or no room is left; up to where it came, and the new size.

    Args:
        ranks: Rank of each.
        incarnations: Which process of the rank.
        processes: One row a number: rank and incarnation.
        cells: Numbers by what is made of rank and incarnation, or in the next free cell; -1 where there is none.
        size: How many are known.
        slots: To be filled.
        row: Where to begin.
    """
    mask = len(cells) - 1
    while row < len(ranks):
        rank, incarnation = ranks[row], incarnations[row]
        mixed = np.uint64((rank * 0x100000001 + incarnation) & 0x7FFFFFFFFFFFFFFF) * np.uint64(_SPREAD)
        cell = np.int64(mixed >> np.uint64(33)) & mask
        while True:
            slot = cells[cell]
            if slot < 0:
                if size == len(processes):
                    return row, size
                slot = cells[cell] = size
                processes[slot, 0], processes[slot, 1] = rank, incarnation
                size += 1
                break
            if processes[slot, 0] == rank and processes[slot, 1] == incarnation:
                break
            cell = (cell + 1) & mask
        slots[row] = slot
        row += 1
    return row, size
