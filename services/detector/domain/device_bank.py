"""The state of every device of a job, as arrays with one row a rank.

A row belongs to one incarnation of a rank on one device; when either changes it starts afresh, so no evidence of a dead
process speaks against its replacement. How a healthy device always differs from its peers outlasts its processes: else
a slowdown soon after a restart would be taken for that. Memory is fixed per row and rows are never more than the ranks
of the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.device_tables import COUNTS, FLAGS, NUMBERS
from evenkeel.services.detector.domain.device_tests import NUM_TESTS
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.memory.state import DERIVED
from evenkeel.services.detector.domain.memory.table_row import TableRow

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

WINDOW = 48
"""Iterations of residuals kept per device: what noise and levels are estimated from."""

# The window moves through so many columns, and back to their beginning at their end.
_WIDE = WINDOW + WINDOW // 6

# Values of a fresh row, where they are not 0.
_FRESH = {"rank": -1, "incarnation": -1, "work_key": np.nan, "published": 1.0}

# What is known of a healthy device, whichever process runs on it.
_OF_DEVICE = ("shared_offset", "own_offset", "has_offset", "num_observed", "num_settled", "scale", "work_key")

_NOBODY: Ints = np.zeros((2, 0), dtype=np.int64)

# The tests in a state, each direction by itself.
_TESTS = ("sums_slower", "sums_faster", "ages_slower", "ages_faster")


def _number() -> TableRow[Floats]:
    return TableRow("numbers", NUMBERS)


def _count() -> TableRow[Counts]:
    return TableRow("counts", COUNTS)


def _flag() -> TableRow[Bools]:
    return TableRow("flags", FLAGS)


@dataclass(slots=True, eq=False)
class DeviceBank:
    """Rows of device state, in few tables; every row of a table of :mod:`device_tables` is an attribute, as a view.

    Attributes:
        work_key: What share of the model the rank holds.
        shared_offset: Log ratio of its work's cost to the expectation, shared by all who hold equal shares.
        own_offset: The healthy device's own small deviation from that, bounded.
        has_offset: A baseline was taken for this row at least once.
        num_to_baseline: Observations still to come before its baseline is taken.
        num_to_skip: Observations still to be left out.
        suspected: It was under suspicion of being slow when its work changed, and no baseline was taken since.
        level: Log slowdown that is established for the device; 0 when healthy.
        ill: A slow verdict stands.
        published: Throughput last published.
        num_relapses: How often the device fell ill again.
        scale: Scale of its noise.
        num_observed: Observations of each row.
        num_since_change: Its observations since its ``level`` last changed.
        num_settled: Observations that its offset rests on.
        numbers: The table of numbers, the sums of the tests included.
        counts: The table of counts.
        flags: The table of flags.
        num_in_sums: Observations in each of the sums.
        residuals: The newest residuals against peers, ``level`` included, oldest first; in single precision, as they
            are most of a row and far from exact.
        located: Ranks, then incarnations, of the frame whose rows were looked for last.
        wide: What ``residuals`` are the newest part of, with room behind them; one row an iteration.
        wide_iterations: The iteration of each of its rows.
        stop: Its first row that is not written yet.
    """

    numbers: Floats = field(default_factory=lambda: np.zeros((len(NUMBERS) + 2 * NUM_TESTS, 0)))
    counts: Counts = field(default_factory=lambda: np.zeros((len(COUNTS), 0), dtype=np.int32))
    num_in_sums: Counts = field(default_factory=lambda: np.zeros((2 * NUM_TESTS, 0), dtype=np.int32))
    flags: Bools = field(default_factory=lambda: np.zeros((len(FLAGS), 0), dtype=np.bool_))
    # One row an iteration, so that the window of all devices is one piece of memory.
    wide: Singles = field(default_factory=lambda: np.full((_WIDE, 0), np.nan, dtype=np.float32))
    wide_iterations: Counts = field(default_factory=lambda: np.full(_WIDE, -1, dtype=np.int32))
    stop: int = WINDOW
    nodes: Sequence[str] = ()
    devices: Sequence[str] = ()
    located: Ints = field(default_factory=lambda: _NOBODY, metadata=DERIVED)
    _everyone: Ints | None = field(default=None, metadata=DERIVED)
    _may_skip: bool = field(default=True, metadata=DERIVED)
    _places: tuple[Sequence[str], Sequence[str]] = field(default_factory=lambda: ((), ()), metadata=DERIVED)
    _located_rows: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=DERIVED)

    work_key, shared_offset, own_offset = _number(), _number(), _number()
    level, published, scale = _number(), _number(), _number()
    rank, incarnation, num_to_baseline, num_to_skip = _count(), _count(), _count(), _count()
    num_relapses, num_observed, num_since_change, num_settled = _count(), _count(), _count(), _count()
    has_offset, suspected, ill = _flag(), _flag(), _flag()

    def __len__(self) -> int:
        count: int = self.numbers.shape[1]
        return count

    @property
    def residuals(self) -> Floats:
        """A view of the newest residuals; it holds until the next :meth:`push`."""
        view: Any = self.window.T
        return view  # type: ignore[no-any-return]  # worked with as all other numbers are, whatever their precision

    @residuals.setter
    def residuals(self, values: Floats) -> None:
        wide: Singles = np.full((_WIDE, len(values)), np.nan, dtype=np.float32)
        wide[:WINDOW] = values.T
        self.wide_iterations[:WINDOW] = self.iterations
        self.wide, self.stop = wide, WINDOW

    @property
    def window(self) -> Singles:
        """The same view, the way that it lies in memory: one row an iteration, one column a row of the bank."""
        window: Singles = self.wide[self.stop - WINDOW : self.stop]
        return window

    @property
    def iterations(self) -> Counts:
        """A view of the iteration of each column of ``residuals``; it holds as long as that one."""
        return self.wide_iterations[self.stop - WINDOW : self.stop]

    def is_everyone(self, rows: Ints) -> bool:
        """Whether these rows, as :meth:`locate` gave them, are all there are, in order."""
        return rows is self._everyone

    @property
    def sums(self) -> Floats:
        """A view of the sequential tests' sums by test, direction (slower, faster) and row."""
        return self.numbers[len(NUMBERS) :].reshape(NUM_TESTS, 2, len(self))

    @property
    def ages(self) -> Counts:
        """A view of the observations in each of these sums."""
        return self.num_in_sums.reshape(NUM_TESTS, 2, len(self))

    @property
    def sums_slower(self) -> Floats:
        """A view of the sums towards slower: one row a device, one column a test."""
        return self.sums[:, 0].T

    @property
    def sums_faster(self) -> Floats:
        """The same towards faster."""
        return self.sums[:, 1].T

    @property
    def ages_slower(self) -> Counts:
        """A view of the observations in the sums towards slower, like those."""
        return self.ages[:, 0].T

    @property
    def ages_faster(self) -> Counts:
        """The same towards faster."""
        return self.ages[:, 1].T

    def row_of(self, rank: int) -> int | None:
        """The row of a rank, or None before it was first seen."""
        found = np.flatnonzero(self.rank == rank)
        return int(found[0]) if len(found) else None

    def settled(self) -> npt.NDArray[np.bool_]:
        """Of all rows, the healthy ones that have a baseline."""
        return np.asarray(self.has_offset & (self.num_to_baseline == 0) & ~self.ill)

    def locate(self, frame: FrameObservation, *, num_to_baseline: int, num_to_skip: int) -> Ints:
        """The row of each entry of a frame; new ranks get a row, new incarnations and devices a fresh one.

        Needed where processes are not those that were located last: else :attr:`located_rows` are theirs.

        Args:
            frame: The frame.
            num_to_baseline: Observations before a fresh row's baseline is taken.
            num_to_skip: Observations of a fresh row that are left out before that.
        """
        # Not kept: processes seldom change.
        row_of = {rank: row for row, rank in enumerate(self.rank.tolist())}
        fresh = [rank for rank in frame.ranks.tolist() if rank not in row_of]
        row_of |= {rank: row for row, rank in enumerate(fresh, start=len(self))}
        if fresh:
            self._append(fresh)
        blank = [""] * len(fresh)
        nodes, devices = [*self.nodes, *blank], [*self.devices, *blank]
        rows = np.empty(len(frame), dtype=np.int64)
        for entry, (rank, incarnation) in enumerate(
            zip(frame.ranks.tolist(), frame.incarnations.tolist(), strict=True)
        ):
            row = row_of[rank]
            node, device = frame.nodes[entry], frame.devices[entry]
            moved = nodes[row] != node or devices[row] != device or not device
            if self.incarnation[row] != incarnation or moved:
                self._reset(row, keeps_offset=not moved and bool(self.settled()[row]))
                self._may_skip = True
                self.rank[row] = rank
                self.incarnation[row] = incarnation
                self.num_to_baseline[row] = num_to_baseline
                self.num_to_skip[row] = num_to_skip
                nodes[row] = node
                devices[row] = device
            rows[entry] = row
        self.located, self._located_rows = np.stack((frame.ranks, frame.incarnations)), rows
        self._places = frame.nodes, frame.devices
        self._everyone = rows if np.array_equal(rows, np.arange(len(self))) else None
        # Shared with the frame where they are the same.
        self.nodes, self.devices = (nodes, devices) if self._everyone is None else (frame.nodes, frame.devices)
        return rows

    @property
    def located_rows(self) -> Ints:
        """The row of each entry of the frame whose rows were looked for last; the same object until the next search."""
        return self._located_rows

    def is_placed_as(self, frame: FrameObservation) -> bool:
        """Whether a frame of the processes that were located last ran where they did then."""
        nodes, devices = self._places
        return (nodes is frame.nodes or nodes == frame.nodes) and (devices is frame.devices or devices == frame.devices)

    def skip_next(self) -> None:
        """Every device's next observation is to be left out."""
        np.maximum(self.num_to_skip, 1, out=self.num_to_skip)
        self._may_skip = True

    def take_skips(self, rows: Ints) -> Bools | None:
        """True for the rows whose observation is to be left out, None for none; it is counted as left out."""
        self._may_skip = self._may_skip and bool(np.count_nonzero(self.num_to_skip))
        if not self._may_skip:
            return None
        skipped: Bools = self.num_to_skip[rows] > 0
        self.num_to_skip[rows[skipped]] -= 1
        return skipped

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is kept was by then."""
        np.minimum(self.iterations, iteration, out=self.iterations)

    def push(self, iteration: int) -> Singles:
        """Begins the column of the windows for an iteration.

        Returns:
            :attr:`window`, whose last row is to be written.
        """
        if self.stop == len(self.wide):
            for each in (self.wide, self.wide_iterations):
                each[: WINDOW - 1] = each[1 - WINDOW :].copy()
            self.stop = WINDOW - 1
        self.wide_iterations[self.stop] = iteration
        self.stop += 1
        return self.window

    def clear_tests(self, rows: Ints) -> None:
        """Starts the sequential tests of some rows again."""
        self.sums[:, :, rows] = 0.0
        self.ages[:, :, rows] = 0

    def _append(self, ranks: list[int]) -> None:
        before, count = len(self), len(ranks)
        window = np.concatenate([self.residuals, np.full((count, WINDOW), np.nan, dtype=np.float32)])
        self.numbers = np.pad(self.numbers, ((0, 0), (0, count)))
        self.counts = np.pad(self.counts, ((0, 0), (0, count)))
        self.flags = np.pad(self.flags, ((0, 0), (0, count)))
        self.num_in_sums = np.pad(self.num_in_sums, ((0, 0), (0, count)))
        self.residuals = window
        for name, fresh in _FRESH.items():
            getattr(self, name)[before:] = fresh
        self.rank[before:] = ranks

    def _reset(self, row: int, *, keeps_offset: bool) -> None:
        kept = [(name, getattr(self, name)[row]) for name in _OF_DEVICE] if keeps_offset else []
        for table in (self.numbers, self.counts, self.flags, self.num_in_sums):
            table[:, row] = 0
        for name, fresh in (*_FRESH.items(), *kept):
            getattr(self, name)[row] = fresh
        self.residuals[row] = np.nan
