"""The columns of one frame out of the blocks in which its samples came, in one compiled step a block."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.domain.frame_entries import BlockRows
from evenkeel.services.telemetry.domain.sample_block import COLUMNS, Names

Ints32 = npt.NDArray[np.int32]


class PickedColumns:
    """Rows of some blocks, ascending by rank; lists of micro-batches each once a block.

    Attributes:
        ranks: Rank of each row.
        order: Places of the rows, ascending by rank, among those of the blocks one after the other.
        names: What ``nodes`` and ``devices`` are numbers in; None if the blocks have not the same.
        incarnations: Which process of the rank.
        nodes: Which name is the node.
        devices: Which name is the device.
        workload_of: Which list of micro-batches.
        numbers: One row each of ``COLUMNS``.
        has: Whether a loss, and whether a norm was reported.
        has_incarnations: Whether any is not 0.
        has_lists: Whether any row has another list than the first one.
        has_numbers: Of each of ``numbers``, whether any is not 0.
        has_any: Of each of ``has``, whether any is set.
        sizes: Micro-batches of each list.
        indexes: Index of each micro-batch, list after list.
        tokens: Its tokens.
        squares: Its sum of squared lengths.
    """

    def __init__(self, parts: Sequence[BlockRows], size: int) -> None:
        """Picks the rows.

        Args:
            parts: Blocks and rows.
            size: How many rows they are.
        """
        self._parts = parts
        ranks = np.concatenate([block.ranks[rows] for block, rows in parts])
        self.order: Ints = np.argsort(ranks)
        self.ranks: Ints = ranks[self.order]
        places = np.empty(size, dtype=np.int64)
        places[self.order] = np.arange(size)
        integers = np.empty((4, size), dtype=np.int32)
        self.numbers: Floats = np.empty((len(COLUMNS), size))
        self.has: Bools = np.empty((2, size), dtype=np.bool_)
        flags = np.zeros(2 + 2 + len(COLUMNS), dtype=np.bool_)
        sizes, indexes, tokens, squares = [], [], [], []
        first = num_lists = 0
        for block, rows in parts:
            lists = block.workloads
            found = np.empty(len(lists.sizes), dtype=np.int64)
            num_used, num_batches = _fill(
                block.incarnations,
                block.node_of,
                block.device_of,
                block.workload_of,
                block.numbers,
                block.has_loss,
                block.has_gradient_norm,
                lists.sizes,
                rows,
                places[first : first + len(rows)],
                num_lists,
                integers,
                self.numbers,
                self.has,
                flags,
                found,
            )
            pairs = np.empty((2, num_batches), dtype=np.int32)
            sums, lengths = np.empty(num_batches), np.empty(num_used, dtype=np.int32)
            _copy_lists(lists.sizes, lists.indexes, lists.tokens, lists.sums_of_squares, found, lengths, pairs, sums)
            sizes.append(lengths)
            indexes.append(pairs[0])
            tokens.append(pairs[1])
            squares.append(sums)
            first, num_lists = first + len(rows), num_lists + num_used
        self.incarnations: Ints32 = integers[0]
        self.nodes: Ints32 = integers[1]
        self.devices: Ints32 = integers[2]
        self.workload_of: Ints32 = integers[3]
        self.has_incarnations, self.has_lists = bool(flags[0]), bool(flags[1])
        self.has_any: Bools = flags[2:4]
        self.has_numbers: Bools = flags[4:]
        self.sizes, self.indexes, self.tokens = _joined(sizes), _joined(indexes), _joined(tokens)
        self.squares = _joined(squares)

    @property
    def names(self) -> Names | None:
        """See above."""
        names = self._parts[0].block.names
        return names if all(block.names is names for block, _ in self._parts) else None

    def place_names(self) -> Iterator[list[str]]:
        """Nodes of all rows, block after block, then their devices."""
        for column in ("node_of", "device_of"):
            yield [block.names[each] for block, rows in self._parts for each in getattr(block, column)[rows].tolist()]

    def traffic(self) -> list[bytes]:
        """Each row's traffic; nothing where there is none at all."""
        if not any(block.traffic for block, _ in self._parts):
            return []
        told = [block.traffic[row] if block.traffic else b"" for block, rows in self._parts for row in rows.tolist()]
        return [told[place] for place in self.order.tolist()]


def _joined(columns: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


@compiled
def _fill(
    incarnations: Ints,
    node_of: Ints,
    device_of: Ints,
    workload_of: Ints,
    numbers: Floats,
    has_loss: Bools,
    has_norm: Bools,
    sizes: Ints,
    rows: Ints,
    places: Ints,
    first_list: int,
    integers: Ints32,
    columns: Floats,
    has: Bools,
    flags: Bools,
    found: Ints,
) -> tuple[int, int]:
    """Copies some rows of a block, whose columns come first, to their places in a frame's columns.

    Args:
        incarnations: As in the block, like those up to ``has_norm``.
        node_of: The same.
        device_of: The same.
        workload_of: The same.
        numbers: The same.
        has_loss: The same.
        has_norm: The same.
        sizes: Micro-batches of each list of the block.
        rows: Which rows.
        places: Where each goes to.
        first_list: How many lists the frame has so far.
        integers: Rows to be filled: incarnations, nodes, devices, lists.
        columns: Rows to be filled: those of ``numbers``.
        has: Rows to be filled: has a loss, has a norm.
        flags: Become true where anything is not 0: incarnations, lists, the two of ``has``, each of ``columns``.
        found: To be filled: the frame's number of each list of the block, -1 of those that are not in it.

    Returns:
        How many lists of the block are in it, and how many micro-batches they have.
    """
    found[:] = -1
    for row in rows:
        found[workload_of[row]] = 0
    num_used = num_batches = 0
    for each in range(len(found)):
        if found[each] == 0:
            found[each] = first_list + num_used
            num_used += 1
            num_batches += sizes[each]
    for turn in range(len(rows)):
        row, place = rows[turn], places[turn]
        integers[0, place], integers[1, place] = incarnations[row], node_of[row]
        integers[2, place], integers[3, place] = device_of[row], found[workload_of[row]]
        has[0, place], has[1, place] = has_loss[row], has_norm[row]
        flags[0] |= incarnations[row] != 0
        flags[1] |= found[workload_of[row]] != 0
        flags[2] |= has_loss[row]
        flags[3] |= has_norm[row]
        for column in range(len(columns)):
            value = numbers[row, column]
            columns[column, place] = value
            flags[4 + column] |= value != 0.0
    return num_used, num_batches


@compiled
def _copy_lists(
    sizes: Ints, indexes: Ints, tokens: Ints, squares: Floats, found: Ints, lengths: Ints32, pairs: Ints32, sums: Floats
) -> None:
    """Copies the lists of micro-batches that are in a frame, which ``found`` has from :func:`_fill`."""
    at = to = turn = 0
    for each in range(len(sizes)):
        if found[each] >= 0:
            lengths[turn] = sizes[each]
            turn += 1
            for place in range(at, at + sizes[each]):
                pairs[0, to], pairs[1, to], sums[to] = indexes[place], tokens[place], squares[place]
                to += 1
        at += sizes[each]
