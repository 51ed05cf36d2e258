"""The open windows of a job's processes as rows of tables, and the compiled step that puts samples into them. Pure."""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.domain.sample_block import COLUMNS, SECONDS, SampleBlock

WHOLE = (
    *("epoch", "start", "first_iteration", "newest_iteration", "num_iterations", "first_offset"),
    *("tokens", "num_losses", "node", "device", "is_new"),
)
"""Columns of whole numbers; node and device are those of the block that opened the window, if ``is_new`` is 1."""
EPOCH, START, FIRST_ITERATION, NEWEST_ITERATION, NUM_ITERATIONS, FIRST_OFFSET = range(6)
TOKENS, NUM_LOSSES, NODE, DEVICE, IS_NEW = range(6, len(WHOLE))

SUMS = (
    *("started_at_unix_seconds", "opened_at_seconds", "updated_at_seconds", "wall_seconds", "wall_seconds_min"),
    *("wall_seconds_max", "sum_of_squares", "loss", "peak_memory_bytes"),
    *COLUMNS[SECONDS],
)
"""Columns of numbers."""
STARTED_AT, OPENED_AT, UPDATED_AT, WALL, WALL_MIN, WALL_MAX, SQUARES, LOSS, PEAK, FIRST_SECONDS = range(10)

_STARTED_COLUMN, _WALL_COLUMN = COLUMNS.index("started_at_unix_seconds"), COLUMNS.index("wall_seconds")
_PEAK_COLUMN, _LOSS_COLUMN = COLUMNS.index("peak_memory_bytes"), COLUMNS.index("losses")
_FIRST_COLUMN, _NUM_SECONDS = SECONDS.start, SECONDS.stop - SECONDS.start
_LANES = 8


class Windows:
    """One row a process.

    Attributes:
        is_open: Whether it has an open window.
        written: Epoch and start of the window that was written before its time; -1 where none was.
        whole: ``WHOLE`` of its window.
        sums: ``SUMS`` of its window.
    """

    def __init__(self, size: int) -> None:
        """Starts with none open.

        Args:
            size: For how many processes.
        """
        self.is_open: Bools = np.zeros(size, dtype=np.bool_)
        self.written: Ints = np.full((size, 2), -1, dtype=np.int64)
        self.whole: Ints = np.zeros((size, len(WHOLE)), dtype=np.int64)
        self.sums: Floats = np.zeros((size, len(SUMS)))

    def grown(self, size: int) -> "Windows":
        """The same with room for so many processes."""
        larger = Windows(size)
        for name in ("is_open", "written", "whole", "sums"):
            known = getattr(self, name)
            getattr(larger, name)[: len(known)] = known
        return larger


class Runs(NamedTuple):
    """Consecutive samples of one process in one window, process by process.

    Attributes:
        rows: Rows of the block, run after run.
        borders: Where each run starts in ``rows``, and where the last one ends.
        slots: Process of each run.
        starts: Start of its window.
    """

    rows: Ints
    borders: Ints
    slots: Ints
    starts: Ints


class Ended(NamedTuple):
    """Windows that ended.

    Attributes:
        slots: Their processes.
        whole: Their ``WHOLE``.
        sums: Their ``SUMS``.
        runs: The run that ended each.
    """

    slots: Ints
    whole: Ints
    sums: Floats
    runs: Ints


def put(windows: Windows, block: SampleBlock, runs: Runs, now_seconds: float) -> Ended:
    """Adds samples to their windows, each iteration of a process once; returns the windows that they end.

    Samples of a window that a later one has followed came twice, or far too late: they are left out.

    Args:
        windows: The windows.
        block: Where the samples are.
        runs: Which they are.
        now_seconds: Unix seconds.
    """
    most = len(runs.slots)
    ended = Ended(
        np.empty(most, dtype=np.int64),
        np.empty((most, len(WHOLE)), dtype=np.int64),
        np.empty((most, len(SUMS))),
        np.empty(most, dtype=np.int64),
    )
    longest = int(np.diff(runs.borders).max(initial=0))
    count = _put(
        block.epochs,
        block.iterations,
        block.offsets,
        block.node_of,
        block.device_of,
        block.numbers,
        block.has_loss,
        block.workload_of,
        block.work,
        *runs,
        now_seconds,
        windows.is_open,
        windows.written,
        windows.whole,
        windows.sums,
        *ended,
        np.empty((3 + _NUM_SECONDS + 1, longest)),
    )
    return Ended(ended.slots[:count], ended.whole[:count], ended.sums[:count], ended.runs[:count])


@compiled
def _put(
    epochs: Ints,
    iterations: Ints,
    offsets: Ints,
    node_of: Ints,
    device_of: Ints,
    numbers: Floats,
    has_loss: Bools,
    workload_of: Ints,
    work: Floats,
    rows: Ints,
    borders: Ints,
    slots: Ints,
    starts: Ints,
    now_seconds: float,
    is_open: Bools,
    written: Ints,
    whole: Ints,
    sums: Floats,
    ended_slots: Ints,
    ended_whole: Ints,
    ended_sums: Floats,
    ended_runs: Ints,
    terms: Floats,
) -> int:
    """See :func:`put`; first the block's columns, then :class:`Runs`, :class:`Windows`, :class:`Ended`, and scratch."""
    count = 0
    for run in range(len(slots)):
        slot, start = slots[run], starts[run]
        first, stop = borders[run], borders[run + 1]
        row = rows[first]
        epoch, known, total = epochs[row], whole[slot], sums[slot]
        is_same = known[EPOCH] == epoch and known[START] == start
        if is_open[slot] and not is_same:
            if epoch < known[EPOCH] or (epoch == known[EPOCH] and start < known[START]):
                continue
            ended_slots[count], ended_runs[count] = slot, run
            ended_whole[count], ended_sums[count] = known, total
            count += 1
        if not is_open[slot] or not is_same:
            known[:], total[:] = 0, 0.0
            known[EPOCH], known[START], known[NEWEST_ITERATION] = epoch, start, -1
            # What comes after an idle window was written is a row of its own, or it would be taken for a repetition.
            again = written[slot, 0] == epoch and written[slot, 1] == start
            known[FIRST_ITERATION] = iterations[row] if again else start
            known[FIRST_OFFSET] = offsets[row]
            known[NODE], known[DEVICE], known[IS_NEW] = node_of[row], device_of[row], 1
            total[STARTED_AT] = numbers[row, _STARTED_COLUMN]
            total[OPENED_AT] = total[UPDATED_AT] = now_seconds
            total[WALL_MIN] = np.inf
            is_open[slot] = True
        highest = known[NEWEST_ITERATION]
        num_counted = 0
        for place in range(first, stop):
            row, at = rows[place], place - first
            counts = iterations[row] > highest
            terms[:, at] = 0.0
            if counts:
                highest = iterations[row]
                num_counted += 1
                wall = numbers[row, _WALL_COLUMN]
                terms[0, at] = wall
                total[WALL_MIN], total[WALL_MAX] = min(total[WALL_MIN], wall), max(total[WALL_MAX], wall)
                total[PEAK] = max(total[PEAK], numbers[row, _PEAK_COLUMN])
                terms[1, at] = work[workload_of[row], 0]
                terms[2, at] = work[workload_of[row], 1]
                for each in range(_NUM_SECONDS):
                    terms[3 + each, at] = numbers[row, _FIRST_COLUMN + each]
                if has_loss[row]:
                    terms[3 + _NUM_SECONDS, at] = numbers[row, _LOSS_COLUMN]
                    known[NUM_LOSSES] += 1
        if num_counted:
            size = stop - first
            known[NEWEST_ITERATION] = highest
            known[NUM_ITERATIONS] += num_counted
            known[TOKENS] += np.int64(_sum(terms[1], size))
            total[WALL] += _sum(terms[0], size)
            total[SQUARES] += _sum(terms[2], size)
            for each in range(_NUM_SECONDS):
                total[FIRST_SECONDS + each] += _sum(terms[3 + each], size)
            total[LOSS] += _sum(terms[3 + _NUM_SECONDS], size)
            total[UPDATED_AT] = now_seconds
    return count


@compiled
def _sum(terms: Floats, size: int) -> float:
    """The first so many together: in eight lanes, as numpy adds a hundred or fewer of them."""
    total, place = 0.0, 1
    if size > _LANES:
        lanes = terms[1 : 1 + _LANES].copy()
        place += _LANES
        while place + _LANES <= size:
            lanes += terms[place : place + _LANES]
            place += _LANES
        total = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
    while place < size:
        total += terms[place]
        place += 1
    return float(terms[0] + total)
