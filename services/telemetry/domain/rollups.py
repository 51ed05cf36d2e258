"""Sums every rank's iterations up over windows of iterations, for the history. Pure.

A window starts at a multiple of its length, so that a replay cuts the same windows and a row is never there twice. It
ends when its rank, or its job's idleness, shows that no more is to come. A row says how many iterations went in.

What comes is summed up in runs, one a process and window, in which the window that was open comes first.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.columns import HAS_LOSS
from evenkeel.history.stream_records import RollupRecord
from evenkeel.numeric.arrays import Bools, Ints

_IDLE_SECONDS = 60.0
"""A window that got nothing for so long is finished."""
_LAST_WORDS_SECONDS = 2.0
"""What a process sent before its end is all there so long after it."""

_MEANS = {
    **{f"{name}_seconds": f"{name}_seconds" for name in ("wall", "forward", "backward", "optimizer")},
    "data_seconds": "input_seconds",
    **{f"{name}_wait_seconds": f"wait_{name}_seconds" for name in ("tensor", "pipeline", "gradient", "vote")},
}
"""Means of the history, and the columns that they are of."""
_ADDED = (*_MEANS, "sum_of_squares", "tokens", "loss", "num_losses", "num_iterations")
_WINDOW = np.dtype(
    [
        ("key", np.int64, 3),
        *((name, np.int64) for name in ("first_iteration", "newest_iteration", "first_offset", "place")),
        *((name, np.float64) for name in ("started_at", "updated_at", "wall_seconds_min")),
        ("most", np.float64, 2),
        ("added", np.float64, len(_ADDED)),
        ("is_open", np.bool_),
    ]
)
"""A window: its process, epoch and start; the longest wall time and the peak of memory; sums. Process and place are
numbers of them."""
_Windows = npt.NDArray[np.void]


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

    def __init__(self, job_id: str, *, window_iterations: int = 16) -> None:
        """Starts without windows.

        Args:
            job_id: The job.
            window_iterations: Length of a window.
        """
        self._job_id = job_id
        self._window_iterations = window_iterations
        self._processes: dict[tuple[int, int], int] = {}
        self._places: dict[tuple[str, str], int] = {}
        self._gone: set[int] = set()
        # The newest window of each process, open or not.
        self._newest: _Windows = np.zeros(0, dtype=_WINDOW)

    def add(self, batches: Batches, offsets: Ints, now_seconds: float) -> list[FinishedWindow]:
        """Takes in iterations of this job; returns the windows that they end.

        Args:
            batches: What came.
            offsets: Offset of the record of each batch.
            now_seconds: Unix seconds.
        """
        windows = self._of_one_iteration(batches, offsets, now_seconds)
        windows = windows[np.argsort(windows["key"][:, 0], kind="stable")]
        windows = windows[self._count(windows)]
        if not len(windows):
            return []
        known = self._newest[np.unique(windows["key"][:, 0])]
        windows = np.concatenate((known[known["is_open"]], windows))
        windows = windows[np.argsort(windows["key"][:, 0], kind="stable")]
        key = windows["key"]
        first = np.flatnonzero(np.append(True, (key[1:] != key[:-1]).any(axis=1)))
        runs, last = windows[first], np.append(first[1:], len(windows)) - 1
        for name in ("newest_iteration", "updated_at"):
            runs[name] = windows[name][last]
        runs["wall_seconds_min"] = np.minimum.reduceat(windows["wall_seconds_min"], first)
        runs["most"] = np.maximum.reduceat(windows["most"], first)
        runs["added"] = np.add.reduceat(windows["added"], first)
        process = runs["key"][:, 0]
        stays = np.append(process[1:] != process[:-1], True)
        self._newest[process[stays]] = runs[stays]
        return self._finished(runs[~stays])

    def finish_idle(self, now_seconds: float) -> list[FinishedWindow]:
        """Ends the windows to which nothing came lately; to be called now and then."""
        limits = np.full(len(self._newest), now_seconds - _IDLE_SECONDS)
        limits[list(self._gone)] = now_seconds - _LAST_WORDS_SECONDS
        return self._end(self._newest["updated_at"] < limits)

    def finish_process(self, rank: int, incarnation: int) -> list[FinishedWindow]:
        """Ends the window of a process that is gone, so that its last iterations are there at once.

        What it sent last may arrive after the news of its end: that window does not wait for long either.
        """
        [process] = self._numbers([(rank, incarnation)])
        self._gone.add(process)
        return self._end(np.arange(len(self._newest)) == process)

    def finish_all(self) -> list[FinishedWindow]:
        """Ends all windows: the job is over, or its partition goes elsewhere."""
        return self._end(self._newest["is_open"])

    @property
    def first_offsets(self) -> list[int]:
        """Offset of the oldest record in each open window."""
        offsets: list[int] = self._newest["first_offset"][self._newest["is_open"]].tolist()
        return offsets

    def _numbers(self, processes: Iterable[tuple[int, int]]) -> list[int]:
        """Number of each process, by rank and incarnation."""
        numbers = [self._processes.setdefault(each, len(self._processes)) for each in processes]
        blank = np.zeros(len(self._processes) - len(self._newest), dtype=_WINDOW)
        blank["key"][:, 2] = blank["newest_iteration"] = -1
        self._newest = np.concatenate((self._newest, blank))
        return numbers

    def _of_one_iteration(self, batches: Batches, offsets: Ints, now_seconds: float) -> _Windows:
        """Each iteration as if it were all of its window."""
        of, windows = batches.process_of, np.zeros(len(batches.iteration), dtype=_WINDOW)
        told = zip(batches.rank.tolist(), batches.incarnation.tolist(), strict=True)
        places = zip(batches.node, batches.device, strict=True)
        has_loss = (batches.flags & HAS_LOSS) != 0
        process = np.array(self._numbers(told), dtype=np.int64)[of]
        starts = batches.iteration - batches.iteration % self._window_iterations
        windows["key"] = np.column_stack((process, batches.epoch[of], starts))
        windows["place"] = np.array([self._places.setdefault(each, len(self._places)) for each in places], dtype=int)[
            of
        ]
        windows["newest_iteration"], windows["first_offset"] = batches.iteration, offsets[of]
        # A window's row begins where the window does; what comes after it was written before its time is a row of its
        # own, or it would be taken for a repetition.
        known = self._newest[process]
        is_over = (known["key"] == windows["key"]).all(axis=1) & ~known["is_open"]
        windows["first_iteration"] = np.where(is_over, batches.iteration, starts)
        windows["started_at"], windows["updated_at"] = batches.started_at_unix_seconds, now_seconds
        windows["wall_seconds_min"], windows["is_open"] = batches.wall_seconds, True
        windows["most"] = np.column_stack((batches.wall_seconds, batches.peak_memory_bytes))
        measured = [getattr(batches, name) for name in (*_MEANS.values(), "sum_of_squares", "tokens")]
        losses = np.where(has_loss, batches.loss, 0.0)
        windows["added"] = np.column_stack([*measured, losses, has_loss, np.ones(len(windows))])
        return windows

    def _count(self, windows: _Windows) -> Bools:
        """Which iterations count, process by process: those beyond all that a process brought before."""
        told, known = _steps(windows), _steps(self._newest[windows["key"][:, 0]])
        counts: Bools = told > np.maximum(known, np.append(-1, np.maximum.accumulate(told)[:-1]))
        return counts

    def _end(self, which: Bools) -> list[FinishedWindow]:
        """Ends those that are open before their time: what still comes for them goes to rows of its own."""
        is_open: Bools = self._newest["is_open"]
        ended = self._newest[which & is_open]
        self._newest["is_open"][which] = False
        return self._finished(ended)

    def _finished(self, windows: _Windows) -> list[FinishedWindow]:
        processes, places = list(self._processes), list(self._places)
        added = dict(zip(_ADDED, windows["added"].T, strict=True))
        processes_of, epochs, starts = windows["key"].T.tolist()
        told = [processes[number] for number in processes_of]
        where = [places[number] for number in windows["place"].tolist()]
        losses = zip(added["loss"].tolist(), added["num_losses"].tolist(), strict=True)
        columns: dict[str, Iterable[Any]] = {
            **{name: windows[name].tolist() for name in ("first_iteration", "wall_seconds_min")},
            **{name: (added[name] / added["num_iterations"]).tolist() for name in _MEANS},
            **{name: added[name].astype(np.int64).tolist() for name in ("num_iterations", "tokens")},
            "sum_of_squares": added["sum_of_squares"].tolist(),
            "loss": [total / count if count else None for total, count in losses],
            "job_id": repeat(self._job_id),
            "rank": [rank for rank, _ in told],
            "incarnation": [incarnation for _, incarnation in told],
            "epoch": epochs,
            "stop_iteration": [start + self._window_iterations for start in starts],
            "node": [node for node, _ in where],
            "device": [device for _, device in where],
            "started_at": [datetime.fromtimestamp(each, UTC) for each in windows["started_at"].tolist()],
            "wall_seconds_max": windows["most"][:, 0].tolist(),
            "peak_memory_bytes": windows["most"][:, 1].astype(np.int64).tolist(),
        }
        records = map(RollupRecord._make, zip(*(columns[name] for name in RollupRecord._fields), strict=False))
        return list(map(FinishedWindow, records, windows["first_offset"].tolist()))


def _steps(windows: _Windows) -> npt.NDArray[np.complex128]:
    """Process, epoch and newest iteration in one number: complex ones are ordered by real parts, then imaginary ones.

    An epoch has 31 bits, and nobody believes an iteration of more than 53.
    """
    process, epoch, _ = windows["key"].T
    steps: npt.NDArray[np.complex128] = process * 2.0**31 + epoch + 1j * windows["newest_iteration"]
    return steps
