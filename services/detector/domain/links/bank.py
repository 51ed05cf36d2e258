"""The state of everything of a job that transfers go over (links between neighbours, groups), one row each, as arrays.

Rows are those of the layout in force: what a reshape no longer uses is forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.links.ties import Tie, Ties
from evenkeel.services.detector.domain.memory.state import DERIVED
from evenkeel.services.detector.domain.memory.table_row import TableRow
from evenkeel.services.detector.domain.sequential_test import NUM_TESTS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

WINDOW = 48
"""Iterations of residuals kept per row: what noise and levels are estimated from."""

NUMBERS = ("reference", "offset", "level", "scale")
"""Rows of the table of numbers; the sums of the tests follow, towards slower before towards faster."""

COUNTS = ("class_of", "num_to_reference", "num_observed", "num_settled", "since", "num_relapses")
"""Rows of the table of counts; the ages of the sums follow, like those."""

# Values of a fresh row, where they are not 0.
_FRESH = {"since": -1}

# The tests in a state, each direction by itself.
_SUMS, _AGES = ("sums_slower", "sums_faster"), ("ages_slower", "ages_faster")


def _number() -> TableRow[Floats]:
    return TableRow("numbers", NUMBERS)


def _count() -> TableRow[Counts]:
    return TableRow("counts", COUNTS)


@dataclass(slots=True, eq=False)
class LinkBank:
    """Rows of state, in few tables; every row of a table of numbers or counts is an attribute, as a view.

    Attributes:
        ties: What each row is.
        class_of: Rows of a class are alike (pair or group, within a node or between nodes).
        reference: Log of its seconds over what their bytes cost on average in the class, when it was healthy.
        offset: What that has changed by since, bounded.
        num_to_reference: Observations still to come before the reference is taken.
        num_observed: Observations of this row.
        num_settled: Observations that reference and offset rest on.
        level: Log slowdown that is established; 0 when healthy.
        since: Iteration since which ``level`` holds; -1 when healthy.
        num_relapses: How often it became slow.
        scale: Scale of its noise.
        residuals: The newest residuals, ``level`` included, oldest first; in single precision, as they are most of a
            row and far from exact.
        numbers: The table of numbers.
        counts: The table of counts.
        iterations: Iteration of each column of ``residuals``.
    """

    ties: Ties = field(default_factory=lambda: Ties.of(()))
    iterations: Counts = field(default_factory=lambda: np.full(WINDOW, -1, dtype=np.int32))
    numbers: Floats = field(default_factory=lambda: np.zeros((len(NUMBERS) + 2 * NUM_TESTS, 0)))
    counts: Counts = field(default_factory=lambda: np.zeros((len(COUNTS) + 2 * NUM_TESTS, 0), dtype=np.int32))
    residuals: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, WINDOW), dtype=np.float32))
    _located: tuple[Sequence[Tie], Ints] | None = field(default=None, metadata=DERIVED)

    reference, offset, level, scale = _number(), _number(), _number(), _number()
    class_of, num_to_reference, num_observed = _count(), _count(), _count()
    num_settled, since, num_relapses = _count(), _count(), _count()

    @property
    def ill(self) -> Bools:
        """Which are slow: a level stands."""
        found: Bools = self.level > 0
        return found

    @property
    def sums_slower(self) -> Floats:
        """A view of the sums towards slower: one row a link or group, one column a test."""
        return self.numbers[len(NUMBERS) : len(NUMBERS) + NUM_TESTS].T

    @property
    def sums_faster(self) -> Floats:
        """The same towards faster."""
        return self.numbers[len(NUMBERS) + NUM_TESTS :].T

    @property
    def ages_slower(self) -> Counts:
        """A view of the observations in the sums towards slower, like those."""
        return self.counts[len(COUNTS) : len(COUNTS) + NUM_TESTS].T

    @property
    def ages_faster(self) -> Counts:
        """The same towards faster."""
        return self.counts[len(COUNTS) + NUM_TESTS :].T

    def __len__(self) -> int:
        return len(self.ties)

    def locate(self, ties: Sequence[Tie], *, num_to_reference: int) -> Ints:
        """The row of each tie; new ones get a row.

        Args:
            ties: What was measured; the same object as last time is known at once.
            num_to_reference: Observations before a fresh row's reference is taken.
        """
        if self._located is not None and self._located[0] is ties:
            return self._located[1]
        # Not kept: it is asked for when the channels change, and would be a tenth of what a small job's links take.
        numbered = {tie.key: row for row, tie in enumerate(self.ties)}
        fresh = [tie for tie in ties if tie.key not in numbered]
        numbered |= {tie.key: row for row, tie in enumerate(fresh, start=len(self))}
        rows = np.array([numbered[tie.key] for tie in ties], dtype=np.int64)
        before = list(self.ties)
        # The same ranks, but one of them moved to another node: another link.
        moved = [
            place
            for place, (row, tie) in enumerate(zip(rows.tolist(), ties, strict=True))
            if row < len(before) and before[row].crosses != tie.crosses
        ]
        if fresh or moved:
            self.numbers = np.pad(self.numbers, ((0, 0), (0, len(fresh))))
            self.counts = np.pad(self.counts, ((0, 0), (0, len(fresh))))
            self.residuals = np.pad(self.residuals, ((0, len(fresh)), (0, 0)))
            every = [*before, *fresh]
            for place in moved:
                every[rows[place]] = ties[place]
            for row in (*range(len(before), len(every)), *rows[moved].tolist()):
                self._begin(row, every[row], num_to_reference)
            # Shared with whoever measured them, where they are the same.
            self.ties = ties if isinstance(ties, Ties) and list(ties) == every else Ties.of(every)
        self._located = (ties, rows)
        return rows

    def _begin(self, row: int, tie: Tie, num_to_reference: int) -> None:
        self.numbers[:, row], self.counts[:, row], self.residuals[row] = 0.0, 0, np.nan
        for name, fresh in _FRESH.items():
            getattr(self, name)[row] = fresh
        self.class_of[row] = 2 * (tie.group is not None) + tie.crosses
        self.num_to_reference[row] = num_to_reference

    def keep(self, rows: Ints) -> None:
        """Forgets all other rows; the kept ones are numbered anew, in the order given."""
        self.numbers, self.counts = self.numbers.take(rows, axis=1), self.counts.take(rows, axis=1)
        self.residuals = self.residuals[rows]
        if not np.array_equal(rows, np.arange(len(self.ties))):
            self.ties = Ties.of([self.ties[row] for row in rows.tolist()])
        self._located = None

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is kept was by then."""
        for known in (self.iterations, self.since):
            np.minimum(known, iteration, out=known)

    def push(self, iteration: int, rows: Ints, residuals: Floats) -> None:
        """Appends one iteration to the windows; rows that are not named get a gap."""
        self.residuals[:, :-1] = self.residuals[:, 1:].copy()
        self.residuals[:, -1] = np.nan
        self.residuals[rows, -1] = residuals
        self.iterations[:-1] = self.iterations[1:].copy()
        self.iterations[-1] = iteration

    def rows_of_rank(self) -> dict[int, list[int]]:
        """Rows that each rank takes part in; made when it is asked for, which is seldom."""
        found: dict[int, list[int]] = {}
        for row, tie in enumerate(self.ties):
            for rank in tie.ranks:
                found.setdefault(rank, []).append(row)
        return found

    def clear_tests(self, rows: Ints) -> None:
        """Starts the sequential tests of some rows again."""
        self.numbers[len(NUMBERS) :, rows] = 0.0
        self.counts[len(COUNTS) :, rows] = 0
