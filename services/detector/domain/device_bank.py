"""The state of every device of a job, as arrays with one row a rank.

A row belongs to one incarnation of a rank on one device; when either changes it starts afresh, so no evidence of a dead
process speaks against its replacement. Memory is fixed per row and rows are never more than the ranks of the job.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.observation import FrameObservation
from services.detector.domain.pipeline_grid import same_numbers
from services.detector.domain.sequential_test import NUM_TESTS

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]

WINDOW = 48
"""Iterations of residuals kept per device: what noise and levels are estimated from."""

# The window moves through so many columns, and back to their beginning at their end.
_WIDE = WINDOW + WINDOW // 6

# Name, shape behind the row axis, type, value of a fresh row.
_COLUMNS: tuple[tuple[str, tuple[int, ...], Any, float], ...] = (
    ("rank", (), np.int64, -1),
    ("incarnation", (), np.int64, -1),
    ("work_key", (), np.float64, np.nan),
    ("shared_offset", (), np.float64, 0.0),
    ("own_offset", (), np.float64, 0.0),
    ("has_offset", (), np.bool_, False),
    ("num_to_baseline", (), np.int64, 0),
    ("num_to_skip", (), np.int64, 0),
    ("suspected", (), np.bool_, False),
    ("level", (), np.float64, 0.0),
    ("ill", (), np.bool_, False),
    ("published", (), np.float64, 1.0),
    ("num_relapses", (), np.int64, 0),
    ("scale", (), np.float64, 0.0),
    ("residuals", (WINDOW,), np.float32, np.nan),
)

# What is counted together: a row each, so that a frame of all devices is one addition.
_COUNTERS = ("num_observed", "num_since_change", "num_settled")

# The tests in a state, each direction by itself.
_TESTS = ("sums_slower", "sums_faster", "ages_slower", "ages_faster")


class _Processes:
    """Which processes a frame was of, and where they ran."""

    __slots__ = ("devices", "incarnations", "nodes", "ranks")

    def __init__(self, frame: FrameObservation) -> None:
        self.ranks, self.incarnations = frame.ranks, frame.incarnations
        self.nodes, self.devices = frame.nodes, frame.devices

    def same_in(self, frame: FrameObservation) -> bool:
        if not (same_numbers(self.ranks, frame.ranks) and same_numbers(self.incarnations, frame.incarnations)):
            return False
        return (self.nodes is frame.nodes or self.nodes == frame.nodes) and (
            self.devices is frame.devices or self.devices == frame.devices
        )


class DeviceBank:
    """Rows of device state; every column of ``_COLUMNS`` is an attribute.

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
        sums: The sequential tests' sums by test, direction (slower, faster) and row, so that a frame is one addition.
        ages: Observations in each of these sums.
        residuals: The newest residuals against peers, ``level`` included, oldest first; in single precision, as they
            are most of a row and far from exact.
        iterations: Iteration of each column of ``residuals``.
    """

    rank: Ints
    incarnation: Ints
    work_key: Floats
    shared_offset: Floats
    own_offset: Floats
    has_offset: npt.NDArray[np.bool_]
    num_to_baseline: Ints
    num_to_skip: Ints
    suspected: npt.NDArray[np.bool_]
    level: Floats
    ill: npt.NDArray[np.bool_]
    published: Floats
    num_relapses: Ints
    scale: Floats
    sums: Floats
    ages: Counts

    def __init__(self) -> None:
        # One row an iteration, so that the window of all devices is one piece of memory.
        self._wide: Singles = np.full((_WIDE, 0), np.nan, dtype=np.float32)
        self._stop = WINDOW
        self._everyone: Ints | None = None
        self.nodes: list[str] = []
        self.devices: list[str] = []
        self.iterations: Ints = np.full(WINDOW, -1, dtype=np.int64)
        for name, shape, kind, _ in _COLUMNS:
            setattr(self, name, np.zeros((0, *shape), dtype=kind))
        self.sums, self.ages = np.zeros((NUM_TESTS, 2, 0)), np.zeros((NUM_TESTS, 2, 0), dtype=np.int32)
        self._counters: Ints = np.zeros((len(_COUNTERS), 0), dtype=np.int64)
        self._located: _Processes | None = None
        self._located_rows: Ints = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def residuals(self) -> Floats:
        """A view of the newest residuals; it holds until the next :meth:`push`."""
        view: Any = self._wide[self._stop - WINDOW : self._stop].T
        return view  # type: ignore[no-any-return]  # worked with as all other numbers are, whatever their precision

    @residuals.setter
    def residuals(self, values: Floats) -> None:
        self._wide = np.full((_WIDE, len(values)), np.nan, dtype=np.float32)
        self._wide[:WINDOW] = values.T
        self._stop = WINDOW

    def is_everyone(self, rows: Ints) -> bool:
        """Whether these rows, as :meth:`locate` gave them, are all there are, in order."""
        return rows is self._everyone

    @property
    def num_observed(self) -> Ints:
        """Observations of each row."""
        row: Ints = self._counters[0]
        return row

    @property
    def num_since_change(self) -> Ints:
        """Observations of each row since its ``level`` last changed."""
        row: Ints = self._counters[1]
        return row

    @property
    def num_settled(self) -> Ints:
        """Observations that each row's offset rests on."""
        row: Ints = self._counters[2]
        return row

    def count(self, rows: Ints, settled: Ints) -> None:
        """Counts one observation of some rows; of those that have a baseline, which are some of them, as settled."""
        if rows is self._everyone and settled is rows:
            self._counters += 1
        else:
            self._counters[:2, rows] += 1
            self._counters[2, settled] += 1

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

    def where(self, rows: Ints) -> Ints | slice:
        """An index to some rows; to all of them one that copies nothing."""
        return slice(None) if rows is self._everyone else rows

    def row_of(self, rank: int) -> int | None:
        """The row of a rank, or None before it was first seen."""
        found = np.flatnonzero(self.rank == rank)
        return int(found[0]) if len(found) else None

    def settled(self) -> npt.NDArray[np.bool_]:
        """Of all rows, the healthy ones that have a baseline."""
        return np.asarray(self.has_offset & (self.num_to_baseline == 0) & ~self.ill)

    def locate(self, frame: FrameObservation, *, num_to_baseline: int, num_to_skip: int) -> Ints:
        """The row of each entry of a frame; new ranks get a row, new incarnations and devices a fresh one.

        Args:
            frame: The frame.
            num_to_baseline: Observations before a fresh row's baseline is taken.
            num_to_skip: Observations of a fresh row that are left out before that.
        """
        if self._located is not None and self._located.same_in(frame):
            return self._located_rows
        # Not kept: processes seldom change.
        row_of = {rank: row for row, rank in enumerate(self.rank.tolist())}
        fresh = [rank for rank in frame.ranks.tolist() if rank not in row_of]
        row_of |= {rank: row for row, rank in enumerate(fresh, start=len(self))}
        self._append(fresh)
        rows = np.empty(len(frame), dtype=np.int64)
        for entry, (rank, incarnation) in enumerate(
            zip(frame.ranks.tolist(), frame.incarnations.tolist(), strict=True)
        ):
            row = row_of[rank]
            node, device = frame.nodes[entry], frame.devices[entry]
            if self.incarnation[row] != incarnation or self.nodes[row] != node or self.devices[row] != device:
                self._reset(row)
                self.rank[row] = rank
                self.incarnation[row] = incarnation
                self.num_to_baseline[row] = num_to_baseline
                self.num_to_skip[row] = num_to_skip
                self.nodes[row] = node
                self.devices[row] = device
            rows[entry] = row
        self._located, self._located_rows = _Processes(frame), rows
        self._everyone = rows if np.array_equal(rows, np.arange(len(self))) else None
        return rows

    def take_skips(self, rows: Ints) -> npt.NDArray[np.bool_]:
        """True for the rows whose observation is to be left out; it is counted as left out."""
        skipped: npt.NDArray[np.bool_] = self.num_to_skip[rows] > 0
        if np.count_nonzero(skipped):
            self.num_to_skip[rows[skipped]] -= 1
        return skipped

    def push(self, iteration: int, rows: Ints | slice, residuals: Floats) -> None:
        """Appends one iteration to the windows; rows that are not named get a gap."""
        if self._stop == _WIDE:
            self._wide[: WINDOW - 1] = self._wide[_WIDE - WINDOW + 1 :]
            self._stop = WINDOW - 1
        newest = self._wide[self._stop]
        if len(residuals) < len(newest):
            newest[:] = np.nan
        newest[rows] = residuals
        self._stop += 1
        self.iterations[:-1] = self.iterations[1:]
        self.iterations[-1] = iteration

    def clear_tests(self, rows: Ints) -> None:
        """Starts the sequential tests of some rows again."""
        self.sums[:, :, rows] = 0.0
        self.ages[:, :, rows] = 0

    def _append(self, ranks: list[int]) -> None:
        for name, shape, kind, fresh in _COLUMNS:
            added = np.full((len(ranks), *shape), fresh, dtype=kind)
            setattr(self, name, np.concatenate([getattr(self, name), added]))
        self._counters = np.pad(self._counters, ((0, 0), (0, len(ranks))))
        added = np.zeros((NUM_TESTS, 2, len(ranks)))
        self.sums = np.concatenate([self.sums, added], axis=2)
        self.ages = np.concatenate([self.ages, added.astype(np.int32)], axis=2)
        self.rank[len(self) - len(ranks) :] = ranks
        self.nodes += [""] * len(ranks)
        self.devices += [""] * len(ranks)

    def _reset(self, row: int) -> None:
        for name, _, _, fresh in _COLUMNS:
            getattr(self, name)[row] = fresh
        self._counters[:, row] = 0
        self.clear_tests(np.array([row]))

    def to_state(self) -> dict[str, Any]:
        """Everything in the bank, as plain values and arrays."""
        state: dict[str, Any] = {name: getattr(self, name).copy() for name, _, _, _ in _COLUMNS}
        state |= {name: getattr(self, name).copy() for name in (*_COUNTERS, *_TESTS)}
        return {**state, "nodes": list(self.nodes), "devices": list(self.devices), "iterations": self.iterations.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        count = len(state["rank"])
        for name, shape, kind, fresh in _COLUMNS:
            # A column that an older snapshot does not have begins afresh.
            setattr(self, name, state[name].copy() if name in state else np.full((count, *shape), fresh, dtype=kind))
        none = np.zeros(count, dtype=np.int64)
        self._counters = np.stack([state.get(name, none) for name in _COUNTERS])
        self.sums = np.stack([state["sums_slower"].T, state["sums_faster"].T], axis=1)
        self.ages = np.stack([state["ages_slower"].T, state["ages_faster"].T], axis=1, dtype=np.int32)
        self.nodes = list(state["nodes"])
        self.devices = list(state["devices"])
        self.iterations = state["iterations"].copy()
        self._located = self._everyone = None
