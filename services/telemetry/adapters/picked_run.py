"""The columns of frames that follow one another out of one block, in two compiled steps for all of them."""

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.domain.sample_block import COLUMNS, SEAT, Names, SampleBlock

Ints32 = npt.NDArray[np.int32]

_SEAT_BEGIN, _SEAT_END = SEAT.start, SEAT.stop


class PickedRun:
    """Some rows of a block for each frame, of as many ranks; lists of micro-batches each once a frame.

    Attributes:
        names: What ``nodes`` and ``devices`` are numbers in.
        ranks: Rank of each row, one row a frame, ascending in each; like the next three.
        incarnations: Which process of the rank.
        nodes: Which name is the node.
        devices: Which name is the device.
        workload_of: Which list of the frame's micro-batches.
        numbers: One table each of ``COLUMNS``, one row a frame.
        has: Tables: whether a loss, and whether a norm was reported.
        num_lists: Lists of micro-batches of each frame.
        is_like_before: Whether a frame's entries are those of the one before, on the same devices and with the same
            shares, and its lists as many; False of the first one.
        sizes: Micro-batches of each list, frame after frame.
        indexes: Index of each micro-batch, list after list.
        tokens: Its tokens.
        squares: Its sum of squared lengths.
    """

    def __init__(self, block: SampleBlock, rows: Ints) -> None:
        """Picks the rows.

        Args:
            block: Where they are.
            rows: One row a frame, the places of its samples in any order.
        """
        self.names: Names = block.names
        ranks = block.ranks[rows]
        if not (ranks[:, 1:] > ranks[:, :-1]).all():
            rows = np.take_along_axis(rows, np.argsort(ranks, axis=1), axis=1)
        count, size = rows.shape
        integers = np.empty((5, count, size), dtype=np.int32)
        self.numbers: Floats = np.empty((len(COLUMNS), count, size))
        self.has: Bools = np.empty((2, count, size), dtype=np.bool_)
        self.num_lists: Ints = np.empty(count, dtype=np.int64)
        self.is_like_before: Bools = np.empty(count, dtype=np.bool_)
        lists = block.workloads
        used, found = np.empty(count * size, dtype=np.int64), np.full(len(lists.sizes), -1, dtype=np.int64)
        num_used = _fill(
            block.ranks,
            block.incarnations,
            block.node_of,
            block.device_of,
            block.workload_of,
            block.numbers,
            block.has_loss,
            block.has_gradient_norm,
            np.ascontiguousarray(rows),
            integers,
            self.numbers,
            self.has,
            self.num_lists,
            self.is_like_before,
            used,
            found,
        )
        self.ranks, self.incarnations, self.nodes, self.devices, self.workload_of = integers
        used = used[:num_used]
        sizes = lists.sizes[used]
        self.sizes: Ints32 = sizes.astype(np.int32)
        num_batches = int(sizes.sum())
        self.indexes: Ints32 = np.empty(num_batches, dtype=np.int32)
        self.tokens: Ints32 = np.empty(num_batches, dtype=np.int32)
        self.squares: Floats = np.empty(num_batches)
        _copy_lists(
            lists.sizes,
            lists.indexes,
            lists.tokens,
            lists.sums_of_squares,
            used,
            self.indexes,
            self.tokens,
            self.squares,
        )


@compiled
def _fill(
    ranks: Ints,
    incarnations: Ints,
    node_of: Ints,
    device_of: Ints,
    workload_of: Ints,
    numbers: Floats,
    has_loss: Bools,
    has_norm: Bools,
    rows: Ints,
    integers: Ints32,
    columns: Floats,
    has: Bools,
    num_lists: Ints,
    is_like_before: Bools,
    used: Ints,
    found: Ints,
) -> int:
    """Copies rows of a block, whose columns come first, to their places in the columns of frames.

    Args:
        ranks: As in the block, like those up to ``has_norm``.
        incarnations: The same.
        node_of: The same.
        device_of: The same.
        workload_of: The same.
        numbers: The same.
        has_loss: The same.
        has_norm: The same.
        rows: One row a frame, ascending by rank.
        integers: Tables to be filled: ranks, incarnations, nodes, devices, lists.
        columns: Tables to be filled: those of ``numbers``.
        has: Tables to be filled: has a loss, has a norm.
        num_lists: To be filled, see :class:`PickedRun`, like the next one.
        is_like_before: The same.
        used: To be filled: which lists of the block are those of the frames, one after the other.
        found: -1 for each list of the block, and so again afterwards.

    Returns:
        How many lists the frames have.
    """
    num_used = 0
    for frame in range(len(rows)):
        like, lowest, highest = frame > 0, len(found), -1
        for place in range(rows.shape[1]):
            row = rows[frame, place]
            integers[0, frame, place], integers[1, frame, place] = ranks[row], incarnations[row]
            integers[2, frame, place], integers[3, frame, place] = node_of[row], device_of[row]
            for column in range(len(columns)):
                columns[column, frame, place] = numbers[row, column]
            has[0, frame, place], has[1, frame, place] = has_loss[row], has_norm[row]
            if like:
                for each in range(4):
                    like = like and integers[each, frame, place] == integers[each, frame - 1, place]
                for column in range(_SEAT_BEGIN, _SEAT_END):
                    like = like and columns[column, frame, place] == columns[column, frame - 1, place]
            each = workload_of[row]
            found[each] = 0
            lowest, highest = min(lowest, each), max(highest, each)
        first = num_used
        for each in range(lowest, highest + 1):
            if found[each] == 0:
                found[each], used[num_used] = num_used - first, each
                num_used += 1
        for place in range(rows.shape[1]):
            integers[4, frame, place] = found[workload_of[rows[frame, place]]]
        found[lowest : highest + 1] = -1
        num_lists[frame] = num_used - first
        is_like_before[frame] = like and num_lists[frame] == num_lists[frame - 1]
    return num_used


@compiled
def _copy_lists(
    sizes: Ints,
    indexes: Ints,
    tokens: Ints,
    squares: Floats,
    used: Ints,
    used_indexes: Ints32,
    used_tokens: Ints32,
    used_squares: Floats,
) -> None:
    """Copies the micro-batches of the lists that are used."""
    begins, at = np.empty(len(sizes), dtype=np.int64), 0
    for each in range(len(sizes)):
        begins[each] = at
        at += sizes[each]
    to = 0
    for each in used:
        for place in range(begins[each], begins[each] + sizes[each]):
            used_indexes[to], used_tokens[to], used_squares[to] = indexes[place], tokens[place], squares[place]
            to += 1
