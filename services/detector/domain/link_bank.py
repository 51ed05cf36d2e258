"""The state of everything of a job that transfers go over (links between neighbours, groups), one row each, as arrays.

Rows are those of the layout in force: what a reshape no longer uses is forgotten.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.sequential_test import NUM_TESTS
from services.detector.domain.transfer_plan import Tie

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

WINDOW = 48
"""Iterations of residuals kept per row: what noise and levels are estimated from."""

# Name, shape behind the row axis, type, value of a fresh row.
_COLUMNS: tuple[tuple[str, tuple[int, ...], Any, float], ...] = (
    ("class_of", (), np.int64, 0),
    ("reference", (), np.float64, 0.0),
    ("offset", (), np.float64, 0.0),
    ("num_to_reference", (), np.int32, 0),
    ("num_observed", (), np.int32, 0),
    ("num_settled", (), np.int32, 0),
    ("level", (), np.float64, 0.0),
    ("ill", (), np.bool_, False),
    ("since", (), np.int64, -1),
    ("num_relapses", (), np.int32, 0),
    ("scale", (), np.float64, 0.0),
    ("sums_slower", (NUM_TESTS,), np.float64, 0.0),
    ("sums_faster", (NUM_TESTS,), np.float64, 0.0),
    ("ages_slower", (NUM_TESTS,), np.int32, 0),
    ("ages_faster", (NUM_TESTS,), np.int32, 0),
    ("residuals", (WINDOW,), np.float32, np.nan),
)


class LinkBank:
    """Rows of state; every column of ``_COLUMNS`` is an attribute.

    Attributes:
        ties: What each row is.
        class_of: Rows of a class are alike (pair or group, within a node or between nodes).
        reference: Log of its seconds over what their bytes cost on average in the class, when it was healthy.
        offset: What that has changed by since, bounded.
        num_to_reference: Observations still to come before the reference is taken.
        num_observed: Observations of this row.
        num_settled: Observations that reference and offset rest on.
        level: Log slowdown that is established; 0 when healthy.
        ill: It is slow.
        since: Iteration since which ``level`` holds; -1 when healthy.
        num_relapses: How often it became slow.
        scale: Scale of its noise.
        sums_slower: The sequential test's sums towards slower; ``ages_slower`` counts their observations.
        sums_faster: The same towards faster.
        residuals: The newest residuals, ``level`` included, oldest first; in single precision, as they are most of a
            row and far from exact.
        iterations: Iteration of each column of ``residuals``.
    """

    class_of: Ints
    reference: Floats
    offset: Floats
    num_to_reference: Counts
    num_observed: Counts
    num_settled: Counts
    level: Floats
    ill: Bools
    since: Ints
    num_relapses: Counts
    scale: Floats
    sums_slower: Floats
    sums_faster: Floats
    ages_slower: Counts
    ages_faster: Counts
    residuals: npt.NDArray[np.float32]

    def __init__(self) -> None:
        self.ties: list[Tie] = []
        self.iterations: Ints = np.full(WINDOW, -1, dtype=np.int64)
        for name, shape, kind, _ in _COLUMNS:
            setattr(self, name, np.zeros((0, *shape), dtype=kind))
        self._located: tuple[Sequence[Tie], Ints] | None = None

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
        for name, shape, kind, value in _COLUMNS:
            added = np.full((len(fresh), *shape), value, dtype=kind)
            setattr(self, name, np.concatenate([getattr(self, name), added]))
        for tie in fresh:
            numbered[tie.key] = len(self.ties)
            self.ties.append(tie)
            self._begin(numbered[tie.key], tie, num_to_reference)
        for tie in ties:
            # The same ranks, but one of them moved to another node: another link.
            if self.ties[numbered[tie.key]].crosses != tie.crosses:
                self._begin(numbered[tie.key], tie, num_to_reference)
        rows = np.array([numbered[tie.key] for tie in ties], dtype=np.int64)
        self._located = (ties, rows)
        return rows

    def _begin(self, row: int, tie: Tie, num_to_reference: int) -> None:
        for name, _, _, value in _COLUMNS:
            getattr(self, name)[row] = value
        self.ties[row] = tie
        self.class_of[row] = 2 * (tie.group is not None) + tie.crosses
        self.num_to_reference[row] = num_to_reference

    def keep(self, rows: Ints) -> None:
        """Forgets all other rows; the kept ones are numbered anew, in the order given."""
        for name, _, _, _ in _COLUMNS:
            setattr(self, name, getattr(self, name)[rows])
        self.ties = [self.ties[row] for row in rows]
        self._located = None

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
        for column in (self.sums_slower, self.sums_faster, self.ages_slower, self.ages_faster):
            column[rows] = 0

    def to_state(self) -> dict[str, Any]:
        """Everything in the bank, as plain values and arrays."""
        state: dict[str, Any] = {name: getattr(self, name).copy() for name, _, _, _ in _COLUMNS}
        ties = [[list(tie.key), list(tie.ranks), tie.crosses] for tie in self.ties]
        return {**state, "ties": ties, "iterations": self.iterations.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        for name, _, kind, _ in _COLUMNS:
            setattr(self, name, state[name].astype(kind))
        self.ties = [
            Tie(group=key[1] if key[0] else None, ranks=tuple(ranks), crosses=bool(crosses))
            for key, ranks, crosses in state["ties"]
        ]
        self.iterations = state["iterations"].copy()
        self._located = None
