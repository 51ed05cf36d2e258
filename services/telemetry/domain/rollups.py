"""Sums every rank's samples up over windows of iterations, for the history. Pure.

A window starts at a multiple of its length, so that a replay cuts the same windows and a row is never there twice. It
ends when its rank, or its job's idleness, shows that no more is to come. A row says how many iterations went in.

Windows are rows of arrays, one a process, and samples come in blocks: a block is cut into runs, one a process and
window, and the first runs of all processes are summed up at once, then the second ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from history.records import RollupRecord
from numeric.arrays import Bools, Ints
from services.telemetry.domain.sample_block import SECONDS, SampleBlock
from services.telemetry.domain.slots import Slots

# Columns of ``_STATE``'s seconds.
_SECONDS = tuple(
    [f"{kind}_seconds" for kind in ("forward", "backward", "optimizer", "data")]
    + [f"{kind}_wait_seconds" for kind in ("tensor", "pipeline", "gradient", "vote")]
)
_LAST_WORDS_SECONDS = 2.0
"""What a process sent before its end is all there so long after it."""

# Name, shape behind the row axis, type, value in a window that was just opened.
_STATE: tuple[tuple[str, tuple[int, ...], Any, float], ...] = (
    ("epoch", (), np.int64, 0),
    ("start", (), np.int64, 0),
    ("first_iteration", (), np.int64, 0),
    ("newest_iteration", (), np.int64, -1),
    ("num_iterations", (), np.int64, 0),
    ("first_offset", (), np.int64, 0),
    ("started_at_unix_seconds", (), np.float64, 0.0),
    ("opened_at_seconds", (), np.float64, 0.0),
    ("updated_at_seconds", (), np.float64, 0.0),
    ("wall_seconds", (), np.float64, 0.0),
    ("wall_seconds_min", (), np.float64, np.inf),
    ("wall_seconds_max", (), np.float64, 0.0),
    ("seconds", (8,), np.float64, 0.0),
    ("tokens", (), np.int64, 0),
    ("sum_of_squares", (), np.float64, 0.0),
    ("loss", (), np.float64, 0.0),
    ("num_losses", (), np.int64, 0),
    ("peak_memory_bytes", (), np.float64, 0.0),
)
# These outlive a window: whether one is open, whether the process ended, and which window was written before its time.
_LASTING: tuple[tuple[str, Any, float], ...] = (
    ("open", np.bool_, False),
    ("gone", np.bool_, False),
    ("written_epoch", np.int64, -1),
    ("written_start", np.int64, -1),
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Consecutive samples of one process in one window, process by process.

    Attributes:
        rows: Rows of the block, run after run.
        firsts: Where each run starts in ``rows``.
        slots: Process of each run.
        starts: Start of its window.
        turns: How many runs of the same process come before it.
    """

    rows: Ints
    firsts: Ints
    slots: Ints
    starts: Ints
    turns: Ints


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
        self._places: list[tuple[str, str]] = []
        self._state: dict[str, npt.NDArray[Any]] = {}
        self._grow(8)

    def add(self, block: SampleBlock, rows: Ints, now_seconds: float) -> list[FinishedWindow]:
        """Takes in samples of this job; returns the windows that they end.

        Args:
            block: Where they are.
            rows: Which rows, in the order in which they came.
            now_seconds: Unix seconds.
        """
        finished: list[FinishedWindow] = []
        runs = self._cut(block, rows)
        lengths = np.diff(np.append(runs.firsts, len(runs.rows)))
        for turn in range(int(runs.turns.max(initial=-1)) + 1):
            which = np.flatnonzero(runs.turns == turn)
            which = which[self._open_windows(block, runs, which, now_seconds, finished)]
            if len(which):
                self._sum_up(block, runs, which, lengths[which], now_seconds)
        return finished

    def finish_idle(self, now_seconds: float) -> list[FinishedWindow]:
        """Ends the windows to which nothing came lately; to be called now and then."""
        state = self._state
        limits = np.where(state["gone"], now_seconds - _LAST_WORDS_SECONDS, now_seconds - self._idle_seconds)
        return self._end(np.flatnonzero(state["open"] & (state["updated_at_seconds"] < limits)))

    def finish_process(self, rank: int, incarnation: int) -> list[FinishedWindow]:
        """Ends the window of a process that is gone, so that its last iterations are there at once.

        What it sent last may arrive after the news of its end: that window does not wait for long either.
        """
        [slot] = self._slots.of(np.array([rank]), np.array([incarnation])).tolist()
        self._make_room()
        self._state["gone"][slot] = True
        return self._end(np.flatnonzero(self._state["open"][slot : slot + 1]) + slot)

    def finish_all(self) -> list[FinishedWindow]:
        """Ends all windows: the job is over, or its partition goes elsewhere."""
        slots = np.flatnonzero(self._state["open"])
        self._state["open"][:] = False
        return self._finish(slots)

    def oldest_offset(self, hold: RollupHold) -> int | None:
        """Offset of the oldest record in an open window that a restart makes again; None if there is none."""
        state = self._state
        young = state["opened_at_seconds"] > hold.opened_after_seconds
        offsets = state["first_offset"][state["open"] & (young | (state["first_offset"] >= hold.from_offset))]
        return int(offsets.min()) if len(offsets) else None

    def _end(self, slots: Ints) -> list[FinishedWindow]:
        """Ends these windows before their time: what still comes for them goes to rows of its own."""
        state = self._state
        state["open"][slots] = False
        state["written_epoch"][slots], state["written_start"][slots] = state["epoch"][slots], state["start"][slots]
        return self._finish(slots)

    def _cut(self, block: SampleBlock, rows: Ints) -> _Runs:
        slots = self._slots.of(block.ranks[rows], block.incarnations[rows])
        self._make_room()
        order = np.argsort(slots, kind="stable")
        rows, slots = rows[order], slots[order]
        epochs, iterations = block.epochs[rows], block.iterations[rows]
        starts = iterations - iterations % self._window_iterations
        new_slot = np.diff(slots, prepend=-1) != 0
        firsts = np.flatnonzero(new_slot | (np.diff(starts, prepend=-1) != 0) | (np.diff(epochs, prepend=-1) != 0))
        number = np.arange(len(firsts))
        begins = np.where(new_slot[firsts], number, 0)
        turns = number - np.maximum.accumulate(begins)
        return _Runs(rows=rows, firsts=firsts, slots=slots[firsts], starts=starts[firsts], turns=turns)

    def _open_windows(
        self, block: SampleBlock, runs: _Runs, which: Ints, now_seconds: float, finished: list[FinishedWindow]
    ) -> Bools:
        """Makes sure that some runs, of different processes, have their windows; False for those written long ago."""
        state, slots, starts = self._state, runs.slots[which], runs.starts[which]
        firsts = runs.rows[runs.firsts[which]]
        epochs, is_open = block.epochs[firsts], state["open"][slots]
        older = (epochs < state["epoch"][slots]) | (
            (epochs == state["epoch"][slots]) & (starts < state["start"][slots])
        )
        late = is_open & older  # came twice, or far too late: its window is written
        fits = is_open & (epochs == state["epoch"][slots]) & (starts == state["start"][slots])
        finished.extend(self._finish(slots[is_open & ~fits & ~late]))
        fresh = ~fits & ~late
        if fresh.any():
            rows, slots, starts, epochs = firsts[fresh], slots[fresh], starts[fresh], epochs[fresh]
            for name, _, _, value in _STATE:
                state[name][slots] = value
            # What comes after an idle window was written is a row of its own, or it would be taken for a repetition.
            again = (state["written_epoch"][slots] == epochs) & (state["written_start"][slots] == starts)
            state["open"][slots] = True
            state["epoch"][slots], state["start"][slots] = epochs, starts
            state["first_iteration"][slots] = np.where(again, block.iterations[rows], starts)
            state["first_offset"][slots] = block.offsets[rows]
            state["started_at_unix_seconds"][slots] = block.numbers[rows, 0]
            state["opened_at_seconds"][slots] = state["updated_at_seconds"][slots] = now_seconds
            places = zip(slots.tolist(), block.node_of[rows].tolist(), block.device_of[rows].tolist(), strict=True)
            for slot, node, device in places:
                self._places[slot] = (block.names[node], block.names[device])
        in_time: Bools = ~late
        return in_time

    def _sum_up(self, block: SampleBlock, runs: _Runs, which: Ints, lengths: Ints, now_seconds: float) -> None:
        """Adds some runs, of different processes, to their windows; each iteration counts once."""
        state, slots = self._state, runs.slots[which]
        places = np.repeat(runs.firsts[which] - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))
        rows, owners = runs.rows[places], np.repeat(np.arange(len(which)), lengths)
        firsts = np.cumsum(lengths) - lengths
        # Counted is what is beyond everything before it in the run, and beyond what the window has.
        reached = owners * self._window_iterations + block.iterations[rows] - runs.starts[which][owners]
        before = np.append(-1, np.maximum.accumulate(reached)[:-1])
        counts = (reached > before) & (block.iterations[rows] > state["newest_iteration"][slots][owners])
        if not counts.any():
            return
        numbers, walls = block.numbers[rows], block.numbers[rows, 1]
        has_loss = counts & block.has_loss[rows]
        tokens, squares = block.work[block.workload_of[rows]].T

        def total(values: npt.NDArray[Any], mask: Bools) -> npt.NDArray[Any]:
            kept = np.where(mask if values.ndim == 1 else mask[:, None], values, 0)
            return np.add.reduceat(kept, firsts)

        state["num_iterations"][slots] += total(np.ones(len(rows), dtype=np.int64), counts)
        state["newest_iteration"][slots] = np.maximum(
            state["newest_iteration"][slots], np.maximum.reduceat(block.iterations[rows], firsts)
        )
        state["wall_seconds"][slots] += total(walls, counts)
        lowest, highest = np.where(counts, walls, np.inf), np.where(counts, walls, 0.0)
        for name, extreme, values in (
            ("wall_seconds_min", np.minimum, lowest),
            ("wall_seconds_max", np.maximum, highest),
            ("peak_memory_bytes", np.maximum, np.where(counts, numbers[:, 16], 0.0)),
        ):
            state[name][slots] = extreme(state[name][slots], extreme.reduceat(values, firsts))
        state["seconds"][slots] += total(numbers[:, SECONDS], counts)
        state["tokens"][slots] += total(tokens, counts).astype(np.int64)
        state["sum_of_squares"][slots] += total(squares, counts)
        state["loss"][slots] += total(numbers[:, 18], has_loss)
        state["num_losses"][slots] += total(np.ones(len(rows), dtype=np.int64), has_loss)
        state["updated_at_seconds"][slots[np.logical_or.reduceat(counts, firsts)]] = now_seconds

    def _make_room(self) -> None:
        """For processes that are new."""
        new = range(len(self._processes), len(self._slots))
        self._processes.extend(map(self._slots.process, new))
        self._places.extend(repeat(("", ""), len(new)))
        if len(self._slots) > len(self._state["open"]):
            self._grow(2 * len(self._slots))

    def _grow(self, size: int) -> None:
        for name, shape, kind, value in (*_STATE, *((name, (), kind, value) for name, kind, value in _LASTING)):
            fresh = np.full((size, *shape), value, dtype=kind)
            known = self._state.get(name, fresh[:0])
            fresh[: len(known)] = known
            self._state[name] = fresh

    def _finish(self, slots: Ints) -> list[FinishedWindow]:
        """The rows of some windows."""
        if not len(slots):
            return []
        state = {name: self._state[name][slots] for name, _, _, _ in _STATE}
        counts, num_losses = state["num_iterations"], state["num_losses"].tolist()
        processes, places = ([each[slot] for slot in slots.tolist()] for each in (self._processes, self._places))
        losses = (state["loss"] / np.maximum(state["num_losses"], 1)).tolist()
        seconds = (state["seconds"] / counts[:, None]).T.tolist()
        columns: dict[str, Iterable[Any]] = {
            **{name: state[name].tolist() for name in RollupRecord._fields if name in state},
            **dict(zip(_SECONDS, seconds, strict=True)),
            "job_id": repeat(self._job_id),
            "rank": [rank for rank, _ in processes],
            "incarnation": [incarnation for _, incarnation in processes],
            "stop_iteration": (state["start"] + self._window_iterations).tolist(),
            "node": [node for node, _ in places],
            "device": [device for _, device in places],
            "started_at": [datetime.fromtimestamp(each, UTC) for each in state["started_at_unix_seconds"].tolist()],
            "wall_seconds": (state["wall_seconds"] / counts).tolist(),
            "loss": [loss if count else None for loss, count in zip(losses, num_losses, strict=True)],
            "peak_memory_bytes": state["peak_memory_bytes"].astype(np.int64).tolist(),
        }
        records = map(RollupRecord._make, zip(*(columns[name] for name in RollupRecord._fields), strict=False))
        return list(map(FinishedWindow, records, state["first_offset"].tolist(), state["opened_at_seconds"].tolist()))
