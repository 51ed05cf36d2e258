"""Everything of a job that transfers go over (links between neighbours, groups), as rows of scans: one scan a class.

A row is compared with those of its class (pair or group, within a node or between nodes): what a whole class has in
common in an iteration, as on a busy fabric, accuses nobody. One that has no like is compared with its own past. Rows
are those of the layout in force: what a reshape no longer uses is forgotten.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.frames.ties import Tie, Ties
from evenkeel.services.detector.domain.links.transfers.cost import NUM_CLASSES
from evenkeel.services.detector.domain.memory.state import DERIVED, GIVEN
from evenkeel.services.detector.domain.scan.residual.recent import KEPT
from evenkeel.services.detector.domain.scan.rows import RowScan

Number = TypeVar("Number", bound=np.generic)

SMALLEST_SLOWDOWN = 0.08
"""Levels below this, in log units of time, are not told: links vary more than devices."""

_SMALLEST_SCALE = 0.005


@dataclass(slots=True, eq=False)
class LinkRows:
    """Judges all links and groups of one job, frame by frame.

    Attributes:
        iterations_per_false_alarm: The operator's budget, for each class.
        ties: What each row is.
        class_of: Its class.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    ties: Ties = field(default_factory=lambda: Ties.of(()))
    class_of: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _scans: list[RowScan] = field(init=False)
    _located: tuple[Ties, Ints] | None = field(default=None, metadata=DERIVED)

    def __post_init__(self) -> None:
        budget, smallest = self.iterations_per_false_alarm, SMALLEST_SLOWDOWN
        self._scans = [RowScan(budget, smallest_level=smallest) for _ in range(NUM_CLASSES)]
        for scan in self._scans:
            scan.allot(0, np.array([_SMALLEST_SCALE]))

    def __len__(self) -> int:
        return len(self.ties)

    def locate(self, ties: Ties) -> Ints:
        """The row of each tie; new ones get a row.

        Args:
            ties: What was measured; the same object as last time is known at once.
        """
        if self._located is not None and self._located[0] is ties:
            return self._located[1]
        # Not kept: it is asked for when the channels change, and would be a tenth of what a small job's links take.
        numbered = {tie.key: row for row, tie in enumerate(self.ties)}
        fresh = [tie for tie in ties if tie.key not in numbered]
        if fresh:
            self._become(Ties.of([*self.ties, *fresh]))
            numbered |= {tie.key: row for row, tie in enumerate(fresh, start=len(numbered))}
        self._located = ties, np.array([numbered[tie.key] for tie in ties], dtype=np.int64)
        return self._located[1]

    def begin_epoch(self, ties: Ties) -> dict[int, int]:
        """These are what the new layout uses, and how much goes over what is another matter than before.

        Returns:
            The row of each that is still in use, by the row that it had.
        """
        rows = {tie.key: row for row, tie in enumerate(ties)}
        kept = {row: rows[tie.key] for row, tie in enumerate(self.ties) if tie.key in rows}
        self._become(ties)
        for scan in self._scans:
            scan.begin_work(np.arange(scan.slow.shape[1]))
        self._located = None
        return kept

    def _become(self, ties: Ties) -> None:
        columns: list[dict[tuple[int, ...], int]] = [{} for _ in self._scans]
        for tie in self.ties:
            columns[_class_of(tie)][tie.key] = len(columns[_class_of(tie)])
        for index, scan in enumerate(self._scans):
            mine = [columns[index].get(tie.key, -1) for tie in ties if _class_of(tie) == index]
            scan.arrange(np.array(mine, dtype=np.int64))
        # Shared with whoever measured them, where they are the same.
        self.ties = ties
        self.class_of = np.array([_class_of(tie) for tie in ties], dtype=np.int64)

    def observe(self, iteration: int, rows: Ints, log_ratios: Floats) -> None:
        """Takes one frame.

        Args:
            iteration: The frame's iteration.
            rows: Rows measured, each at most once.
            log_ratios: Log of measured over expected seconds of each.
        """
        values = np.full(len(self), np.nan)
        values[rows] = log_ratios
        for index, scan in enumerate(self._scans):
            if scan.slow.shape[1]:
                scan.observe(iteration, values[None, self.class_of == index])

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is known was by then."""
        for scan in self._scans:
            scan.go_back(iteration)

    def call_healthy(self, row: int) -> None:
        """A row is not slow any more."""
        mine = self.class_of == self.class_of[row]
        self._scans[self.class_of[row]].call_healthy(np.array([np.count_nonzero(mine[:row])]))

    @property
    def slow(self) -> Bools:
        """Which are slow."""
        return self._of_rows(lambda scan: scan.slow[0])

    @property
    def calm(self) -> Bools:
        """Those that are healthy and under no suspicion."""
        return ~self._of_rows(lambda scan: scan.slow[0] | scan.scan.suspected[0])

    @property
    def levels(self) -> Floats:
        """How much slower each is than healthy, log units of time; 0 for a healthy one."""
        return self._of_rows(lambda scan: scan.levels[0])

    @property
    def errors(self) -> Floats:
        """Standard errors of the levels."""
        return self._of_rows(lambda scan: scan.errors[0])

    @property
    def scales(self) -> Floats:
        """Standard deviation of each in one iteration; NaN where it is not known yet."""
        return self._of_rows(lambda scan: scan.scan.noise.scales[0])

    @property
    def strays(self) -> Floats:
        """How far a mean of some iterations strays, times their root: more than one iteration where noise wanders."""
        return self._of_rows(lambda scan: scan.scan.noise.scales[0] * scan.scan.widths.widths[0, 0])

    @property
    def since(self) -> Ints:
        """First iteration that showed where each stands."""
        return self._of_rows(lambda scan: scan.first_iterations[0])

    @property
    def evidence(self) -> Floats:
        """Evidence against each, as a part of what it takes to call a healthy one slow."""
        return self._of_rows(lambda scan: scan.evidence)

    @property
    def residuals(self) -> Floats:
        """The newest of each, oldest first; NaN where there is none."""
        return self._of_rows(lambda scan: _widened(scan.residuals.newest(KEPT)[:, 0].T))

    @property
    def iterations(self) -> Floats:
        """Of each column of :attr:`residuals`."""
        longest = max(self._scans, key=lambda scan: scan.num_frames)
        return _widened(longest.iterations)

    def rows_of_rank(self) -> dict[int, list[int]]:
        """Rows that each rank takes part in; made when it is asked for, which is seldom."""
        found: dict[int, list[int]] = {}
        for row, tie in enumerate(self.ties):
            for rank in tie.ranks:
                found.setdefault(rank, []).append(row)
        return found

    def _of_rows(self, what: Callable[[RowScan], npt.NDArray[Number]]) -> npt.NDArray[Number]:
        by_class = np.concatenate([what(scan) for scan in self._scans])
        found = np.empty_like(by_class)
        found[np.argsort(self.class_of, kind="stable")] = by_class
        return found


def _class_of(tie: Tie) -> int:
    return 2 * (tie.group is not None) + tie.crosses


def _widened(newest: Floats) -> Floats:
    """As long as what is kept at most, newest last."""
    missing = KEPT - newest.shape[-1]
    return np.pad(newest, [(0, 0)] * (newest.ndim - 1) + [(missing, 0)], constant_values=np.nan)
