"""Sums every rank's samples up over windows of iterations, for the history. Pure.

A window starts at a multiple of its length, so that a replay cuts the same windows and a row is never there twice. It
ends when its rank, or its job's idleness, shows that no more is to come. A row says how many iterations went in.

Samples come in blocks: a block is cut into runs, one a process and window, which one compiled step adds to the windows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from evenkeel.history.records import RollupRecord
from evenkeel.numeric.arrays import Floats, Ints
from evenkeel.services.telemetry.domain.rollup_windows import (
    DEVICE,
    EPOCH,
    FIRST_OFFSET,
    IS_NEW,
    LOSS,
    NODE,
    NUM_ITERATIONS,
    NUM_LOSSES,
    OPENED_AT,
    START,
    STARTED_AT,
    SUMS,
    UPDATED_AT,
    WALL,
    WHOLE,
    Runs,
    Windows,
    put,
)
from evenkeel.services.telemetry.domain.sample_block import COLUMNS, SECONDS, Names, SampleBlock
from evenkeel.services.telemetry.domain.slots import Slots

_FIRST_PROCESSES = 8
_LAST_WORDS_SECONDS = 2.0
"""What a process sent before its end is all there so long after it."""

_Place = tuple[str, str]


class FinishedWindow(NamedTuple):
    """A row for the history, and what a restart would need to make it again.

    Attributes:
        record: The row.
        first_offset: Offset of the oldest record that went in.
        opened_at_seconds: When that record came, Unix seconds.
    """

    record: RollupRecord
    first_offset: int
    opened_at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupHold:
    """Which rows a restart makes again: those that are young, and those that begin late, whatever their age.

    Attributes:
        opened_after_seconds: A row is young whose first record came after this, Unix seconds.
        from_offset: A row begins late whose first record has this offset or a later one.
    """

    opened_after_seconds: float
    from_offset: int


class RollupAggregator:
    """The open windows of one job."""

    def __init__(self, job_id: str, *, window_iterations: int = 16, idle_seconds: float = 60.0) -> None:
        """Starts without windows.

        Args:
            job_id: The job.
            window_iterations: Length of a window.
            idle_seconds: A window that got nothing for so long is finished.
        """
        self._job_id = job_id
        self._window_iterations = window_iterations
        self._idle_seconds = idle_seconds
        self._slots = Slots()
        self._processes: list[tuple[int, int]] = []
        # Node and device of each window that is open.
        self._places: list[_Place] = []
        self._windows = Windows(_FIRST_PROCESSES)
        self._gone = np.zeros(_FIRST_PROCESSES, dtype=np.bool_)

    def add(self, block: SampleBlock, rows: Ints, now_seconds: float) -> list[FinishedWindow]:
        """Takes in samples of this job; returns the windows that they end.

        Args:
            block: Where they are.
            rows: Which rows, in the order in which they came.
            now_seconds: Unix seconds.
        """
        if not len(rows):
            return []
        runs, turns = self._cut(block, rows)
        ended = put(self._windows, block, runs, now_seconds)
        # The first windows of all processes, then the second ones: processes end theirs together.
        order = np.argsort(turns[ended.runs], kind="stable")
        slots, whole = ended.slots[order], ended.whole[order]
        finished = self._finish(slots, whole, ended.sums[order], self._places_of(slots, whole, block.names))
        new = np.flatnonzero(self._windows.whole[:, IS_NEW])
        if len(new):
            whole = self._windows.whole[new]
            for slot, place in zip(new.tolist(), self._places_of(new, whole, block.names), strict=True):
                self._places[slot] = place
            self._windows.whole[new, IS_NEW] = 0
        return finished

    def finish_idle(self, now_seconds: float) -> list[FinishedWindow]:
        """Ends the windows to which nothing came lately; to be called now and then."""
        limits = np.where(self._gone, now_seconds - _LAST_WORDS_SECONDS, now_seconds - self._idle_seconds)
        return self._end(np.flatnonzero(self._windows.is_open & (self._windows.sums[:, UPDATED_AT] < limits)))

    def finish_process(self, rank: int, incarnation: int) -> list[FinishedWindow]:
        """Ends the window of a process that is gone, so that its last iterations are there at once.

        What it sent last may arrive after the news of its end: that window does not wait for long either.
        """
        [slot] = self._slots.of(np.array([rank]), np.array([incarnation])).tolist()
        self._make_room()
        self._gone[slot] = True
        return self._end(np.flatnonzero(self._windows.is_open[slot : slot + 1]) + slot)

    def finish_all(self) -> list[FinishedWindow]:
        """Ends all windows: the job is over, or its partition goes elsewhere."""
        slots = np.flatnonzero(self._windows.is_open)
        self._windows.is_open[:] = False
        return self._finish_open(slots)

    def oldest_offset(self, hold: RollupHold) -> int | None:
        """Offset of the oldest record in an open window that a restart makes again; None if there is none."""
        windows = self._windows
        young = windows.sums[:, OPENED_AT] > hold.opened_after_seconds
        first_offsets = windows.whole[:, FIRST_OFFSET]
        offsets = first_offsets[windows.is_open & (young | (first_offsets >= hold.from_offset))]
        return int(offsets.min()) if len(offsets) else None

    def _end(self, slots: Ints) -> list[FinishedWindow]:
        """Ends these windows before their time: what still comes for them goes to rows of its own."""
        windows = self._windows
        windows.is_open[slots] = False
        windows.written[slots] = windows.whole[slots][:, (EPOCH, START)]
        return self._finish_open(slots)

    def _cut(self, block: SampleBlock, rows: Ints) -> tuple[Runs, Ints]:
        """The runs, and how many of the same process come before each."""
        slots = self._slots.of(block.ranks[rows], block.incarnations[rows])
        self._make_room()
        order = np.argsort(slots, kind="stable")
        rows, slots = rows[order], slots[order]
        epochs, iterations = block.epochs[rows], block.iterations[rows]
        starts = iterations - iterations % self._window_iterations
        new_slot = np.diff(slots, prepend=-1) != 0
        firsts = np.flatnonzero(new_slot | (np.diff(starts, prepend=-1) != 0) | (np.diff(epochs, prepend=-1) != 0))
        number = np.arange(len(firsts))
        turns = number - np.maximum.accumulate(np.where(new_slot[firsts], number, 0))
        runs = Runs(rows=rows, borders=np.append(firsts, len(rows)), slots=slots[firsts], starts=starts[firsts])
        return runs, turns

    def _make_room(self) -> None:
        """For processes that are new."""
        new = range(len(self._processes), len(self._slots))
        self._processes.extend(map(self._slots.process, new))
        self._places.extend(repeat(("", ""), len(new)))
        if len(self._slots) > len(self._gone):
            self._windows = self._windows.grown(2 * len(self._slots))
            gone, self._gone = self._gone, np.zeros(2 * len(self._slots), dtype=np.bool_)
            self._gone[: len(gone)] = gone

    def _places_of(self, slots: Ints, whole: Ints, names: Names) -> list[_Place]:
        """Node and device of windows: of those that a block opened by its names, else as they are known."""
        told = zip(slots.tolist(), *whole[:, (IS_NEW, NODE, DEVICE)].T.tolist(), strict=True)
        return [(names[node], names[device]) if new else self._places[slot] for slot, new, node, device in told]

    def _finish_open(self, slots: Ints) -> list[FinishedWindow]:
        places = [self._places[slot] for slot in slots.tolist()]
        return self._finish(slots, self._windows.whole[slots], self._windows.sums[slots], places)

    def _finish(self, slots: Ints, whole: Ints, sums: Floats, places: Sequence[_Place]) -> list[FinishedWindow]:
        """The rows of some windows."""
        if not len(slots):
            return []
        counts, num_losses = whole[:, NUM_ITERATIONS], whole[:, NUM_LOSSES]
        processes = [self._processes[slot] for slot in slots.tolist()]
        losses = (sums[:, LOSS] / np.maximum(num_losses, 1)).tolist()
        columns: dict[str, Iterable[Any]] = {
            **{name: whole[:, column].tolist() for column, name in enumerate(WHOLE) if name in _RECORDED},
            **{name: sums[:, column].tolist() for column, name in enumerate(SUMS) if name in _RECORDED},
            **{name: (sums[:, SUMS.index(name)] / counts).tolist() for name in (*COLUMNS[SECONDS], SUMS[WALL])},
            "job_id": repeat(self._job_id),
            "rank": [rank for rank, _ in processes],
            "incarnation": [incarnation for _, incarnation in processes],
            "stop_iteration": (whole[:, START] + self._window_iterations).tolist(),
            "node": [node for node, _ in places],
            "device": [device for _, device in places],
            "started_at": [datetime.fromtimestamp(each, UTC) for each in sums[:, STARTED_AT].tolist()],
            "loss": [loss if count else None for loss, count in zip(losses, num_losses.tolist(), strict=True)],
            "peak_memory_bytes": sums[:, SUMS.index("peak_memory_bytes")].astype(np.int64).tolist(),
        }
        records = map(RollupRecord._make, zip(*(columns[name] for name in RollupRecord._fields), strict=False))
        first_offsets, opened_at = whole[:, FIRST_OFFSET].tolist(), sums[:, OPENED_AT].tolist()
        return list(map(FinishedWindow, records, first_offsets, opened_at))


_RECORDED = frozenset(RollupRecord._fields)
