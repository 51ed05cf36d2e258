"""Sums every rank's iterations up over windows of iterations, for the history. Pure.

A window starts at a multiple of its length, so that a replay cuts the same windows and a row is never there twice. It
ends when its rank, or its job's idleness, shows that no more is to come. A row says how many iterations went in.

What comes is cut into runs, one a process and window; a run goes into the window that is open, or ends it.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.columns import HAS_LOSS
from evenkeel.contracts.measured_arrays import Bools, Floats, Ints
from evenkeel.history.stream_records import RollupRecord

_LAST_WORDS_SECONDS = 2.0
"""What a process sent before its end is all there so long after it."""

_WHOLE = (
    *("epoch", "start", "first_iteration", "newest_iteration", "num_iterations", "first_offset", "num_losses"),
    *("tokens", "place"),
)
"""Columns of whole numbers; place is that of the node and device that opened the window."""
_EPOCH, _START, _FIRST, _NEWEST, _COUNT, _OFFSET, _NUM_LOSSES, _TOKENS, _PLACE = range(len(_WHOLE))
_ADDED = [_COUNT, _NUM_LOSSES, _TOKENS]

_SECONDS = {
    **{f"{name}_seconds": f"{name}_seconds" for name in ("wall", "forward", "backward", "optimizer")},
    "data_seconds": "input_seconds",
    **{f"{name}_wait_seconds": f"wait_{name}_seconds" for name in ("tensor", "pipeline", "gradient", "vote")},
}
"""Means of the history, and the columns that they are of."""
_SUMS = (
    *_SECONDS,
    *("sum_of_squares", "loss", "wall_seconds_min", "wall_seconds_max", "peak_memory_bytes"),
    *("started_at", "updated_at_seconds"),
)
_SQUARES, _LOSS, _MIN, _MAX, _PEAK, _STARTED_AT, _UPDATED_AT = range(len(_SECONDS), len(_SUMS))


class FinishedWindow(NamedTuple):
    """A row for the history, and what a restart would need to make it again.

    Attributes:
        record: The row.
        first_offset: Offset of the oldest record that went in.
    """

    record: RollupRecord
    first_offset: int


class RollupAggregator:
    """The open windows of one job: one row a process."""

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
        self._rows: dict[tuple[int, int], int] = {}
        self._places: dict[tuple[str, str], int] = {}
        self._is_open: Bools = np.zeros(0, dtype=np.bool_)
        self._gone: Bools = np.zeros(0, dtype=np.bool_)
        self._whole: Ints = np.zeros((0, len(_WHOLE)), dtype=np.int64)
        self._sums: Floats = np.zeros((0, len(_SUMS)))

    def add(self, batches: Batches, offsets: Ints, now_seconds: float) -> list[FinishedWindow]:
        """Takes in iterations of this job; returns the windows that they end.

        Args:
            batches: What came.
            offsets: Offset of the record of each batch.
            now_seconds: Unix seconds.
        """
        told = zip(batches.rank.tolist(), batches.incarnation.tolist(), strict=True)
        process = np.array([self._row(*each) for each in told], dtype=np.int64)[batches.process_of]
        order = np.argsort(process, kind="stable")
        order = order[self._count(process[order], batches.epoch[batches.process_of][order], batches.iteration[order])]
        if not len(order):
            return []
        process, of = process[order], batches.process_of[order]
        starts = batches.iteration[order] - batches.iteration[order] % self._window_iterations
        key = np.column_stack((process, batches.epoch[of], starts))
        first = np.flatnonzero(np.append(True, (key[1:] != key[:-1]).any(axis=1)))
        whole, sums = self._summed(batches, offsets, order, first, now_seconds)
        whole[:, _EPOCH], whole[:, _START] = key[first, 1], key[first, 2]
        return self._put(process[first], whole, sums)

    def finish_idle(self, now_seconds: float) -> list[FinishedWindow]:
        """Ends the windows to which nothing came lately; to be called now and then."""
        limits = np.where(self._gone, now_seconds - _LAST_WORDS_SECONDS, now_seconds - self._idle_seconds)
        return self._end(np.flatnonzero(self._is_open & (self._sums[:, _UPDATED_AT] < limits)))

    def finish_process(self, rank: int, incarnation: int) -> list[FinishedWindow]:
        """Ends the window of a process that is gone, so that its last iterations are there at once.

        What it sent last may arrive after the news of its end: that window does not wait for long either.
        """
        row = self._row(rank, incarnation)
        self._gone[row] = True
        return self._end(np.flatnonzero(self._is_open[row : row + 1]) + row)

    def finish_all(self) -> list[FinishedWindow]:
        """Ends all windows: the job is over, or its partition goes elsewhere."""
        return self._end(np.flatnonzero(self._is_open))

    @property
    def first_offsets(self) -> list[int]:
        """Offset of the oldest record in each open window."""
        offsets: list[int] = self._whole[self._is_open, _OFFSET].tolist()
        return offsets

    def _row(self, rank: int, incarnation: int) -> int:
        row = self._rows.setdefault((rank, incarnation), len(self._rows))
        if row >= len(self._is_open):
            more = max(8, row)
            self._is_open, self._gone = (np.pad(each, (0, more)) for each in (self._is_open, self._gone))
            self._whole = np.pad(self._whole, ((0, more), (0, 0)))
            self._sums = np.pad(self._sums, ((0, more), (0, 0)))
            self._whole[row:, [_EPOCH, _NEWEST]] = -1
        return row

    def _count(self, process: Ints, epochs: Ints, iterations: Ints) -> Bools:
        """Which iterations count, process by process: those beyond all that a process brought before."""
        known = self._whole[process][:, [_EPOCH, _NEWEST]]
        steps = np.column_stack((epochs, iterations))
        _, place = np.unique(np.concatenate((known, steps)), axis=0, return_inverse=True)
        before, place = place.reshape(2, -1)
        base = process * (2 * len(process) + 1)  # processes apart, so that one running maximum does for all
        highest = np.maximum.accumulate(base + np.maximum(before, place))
        reached = np.maximum(base + before, np.append(-1, highest[:-1]))
        counts: Bools = base + place > reached
        return counts

    def _summed(
        self, batches: Batches, offsets: Ints, rows: Ints, first: Ints, now_seconds: float
    ) -> tuple[Ints, Floats]:
        """The columns of each run of rows, which begin at ``first``."""
        whole, sums = np.zeros((len(first), len(_WHOLE)), dtype=np.int64), np.zeros((len(first), len(_SUMS)))
        of = batches.process_of[rows]
        has_loss = (batches.flags[rows] & HAS_LOSS) != 0
        added = np.column_stack([getattr(batches, name)[rows] for name in _SECONDS.values()])
        sums[:, : len(_SECONDS)] = np.add.reduceat(added, first)
        sums[:, _SQUARES] = np.add.reduceat(batches.sum_of_squares[rows], first)
        sums[:, _LOSS] = np.add.reduceat(np.where(has_loss, batches.loss[rows], 0.0), first)
        sums[:, _MIN] = np.minimum.reduceat(batches.wall_seconds[rows], first)
        sums[:, _MAX] = np.maximum.reduceat(batches.wall_seconds[rows], first)
        sums[:, _PEAK] = np.maximum.reduceat(batches.peak_memory_bytes[rows], first)
        sums[:, _STARTED_AT] = batches.started_at_unix_seconds[rows][first]
        sums[:, _UPDATED_AT] = now_seconds
        ends = np.append(first[1:], len(rows))
        whole[:, _FIRST], whole[:, _NEWEST] = batches.iteration[rows][first], batches.iteration[rows][ends - 1]
        whole[:, _COUNT], whole[:, _OFFSET] = ends - first, offsets[of][first]
        whole[:, _NUM_LOSSES] = np.add.reduceat(has_loss.astype(np.int64), first)
        whole[:, _TOKENS] = np.add.reduceat(batches.tokens[rows], first)
        places = [(batches.node[each], batches.device[each]) for each in of[first].tolist()]
        whole[:, _PLACE] = [self._places.setdefault(place, len(self._places)) for place in places]
        return whole, sums

    def _put(self, process: Ints, whole: Ints, sums: Floats) -> list[FinishedWindow]:
        """Takes in runs, process by process; the last of each is its open window, the others are over."""
        is_first, is_last = (np.ones(len(process), dtype=np.bool_) for _ in range(2))
        is_first[1:] = is_last[:-1] = process[1:] != process[:-1]
        known = self._whole[process]
        same = (known[:, [_EPOCH, _START]] == whole[:, [_EPOCH, _START]]).all(axis=1) & is_first
        goes_on = same & self._is_open[process]
        # A window's row begins where the window does; what comes after it was written before its time is a row of its
        # own, or it would be taken for a repetition.
        whole[:, _FIRST] = np.where(same & ~self._is_open[process], whole[:, _FIRST], whole[:, _START])
        ends = process[is_first & ~goes_on & self._is_open[process]]
        ended = [(ends, self._whole[ends], self._sums[ends])]
        into, old = process[goes_on], self._sums[process[goes_on]]
        merged = sums[goes_on]
        merged[:, :_MIN] += old[:, :_MIN]
        merged[:, _MIN] = np.minimum(merged[:, _MIN], old[:, _MIN])
        merged[:, [_MAX, _PEAK]] = np.maximum(merged[:, [_MAX, _PEAK]], old[:, [_MAX, _PEAK]])
        merged[:, _STARTED_AT] = old[:, _STARTED_AT]
        sums[goes_on] = merged
        for column in (_FIRST, _OFFSET, _PLACE):
            whole[goes_on, column] = self._whole[into, column]
        for column in _ADDED:
            whole[goes_on, column] += self._whole[into, column]
        ended.append((process[~is_last], whole[~is_last], sums[~is_last]))
        stays = process[is_last]
        self._is_open[stays], self._whole[stays], self._sums[stays] = True, whole[is_last], sums[is_last]
        return self._finish(*(np.concatenate(columns) for columns in zip(*ended, strict=True)))

    def _end(self, rows: Ints) -> list[FinishedWindow]:
        """Ends these windows before their time: what still comes for them goes to rows of its own."""
        self._is_open[rows] = False
        return self._finish(rows, self._whole[rows], self._sums[rows])

    def _finish(self, rows: Ints, whole: Ints, sums: Floats) -> list[FinishedWindow]:
        processes, places = list(self._rows), list(self._places)
        counts, num_losses = whole[:, _COUNT], whole[:, _NUM_LOSSES]
        told = [processes[row] for row in rows.tolist()]
        where = [places[place] for place in whole[:, _PLACE].tolist()]
        losses = (sums[:, _LOSS] / np.maximum(num_losses, 1)).tolist()
        columns: dict[str, Iterable[Any]] = {
            "epoch": whole[:, _EPOCH].tolist(),
            "first_iteration": whole[:, _FIRST].tolist(),
            "num_iterations": counts.tolist(),
            "tokens": whole[:, _TOKENS].tolist(),
            **{name: (sums[:, place] / counts).tolist() for place, name in enumerate(_SECONDS)},
            **{_SUMS[place]: sums[:, place].tolist() for place in (_SQUARES, _MIN, _MAX)},
            "job_id": repeat(self._job_id),
            "rank": [rank for rank, _ in told],
            "incarnation": [incarnation for _, incarnation in told],
            "stop_iteration": (whole[:, _START] + self._window_iterations).tolist(),
            "node": [node for node, _ in where],
            "device": [device for _, device in where],
            "started_at": [datetime.fromtimestamp(each, UTC) for each in sums[:, _STARTED_AT].tolist()],
            "loss": [loss if count else None for loss, count in zip(losses, num_losses.tolist(), strict=True)],
            "peak_memory_bytes": sums[:, _PEAK].astype(np.int64).tolist(),
        }
        records = map(RollupRecord._make, zip(*(columns[name] for name in RollupRecord._fields), strict=False))
        return list(map(FinishedWindow, records, whole[:, _OFFSET].tolist()))
