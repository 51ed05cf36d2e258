"""Who the rows of a job are: one a rank, in the order in which they were first seen.

A row belongs to one incarnation of a rank on one device; what is known of a healthy device outlasts its processes. Rows
are never more than the ranks of the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Ints
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.memory.state import DERIVED

_NOBODY: Ints = np.zeros((2, 0), dtype=np.int64)


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class DeviceRows:
    """The ranks of a job, and where they run.

    Attributes:
        ranks: Rank of each row.
        incarnations: Its process.
        nodes: Node of each row.
        hosts: The same as numbers.
        devices: Its device there; empty where none is named.
        num_to_skip: Observations of each that are still to be left out.
        located_rows: The row of each entry of the frame whose rows were looked for last.
    """

    ranks: Ints = field(default_factory=_no_ints)
    incarnations: Ints = field(default_factory=_no_ints)
    nodes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    num_to_skip: Ints = field(default_factory=_no_ints)
    hosts: Ints = field(default_factory=_no_ints, metadata=DERIVED)
    located_rows: Ints = field(default_factory=_no_ints, metadata=DERIVED)
    # Ranks, then incarnations, of that frame.
    _located: Ints = field(default_factory=lambda: _NOBODY, metadata=DERIVED)
    _places: tuple[Sequence[str], Sequence[str]] = field(default_factory=lambda: ((), ()), metadata=DERIVED)

    def __len__(self) -> int:
        return len(self.ranks)

    def row_of(self, rank: int) -> int | None:
        """The row of a rank, or None before it was first seen."""
        found = np.flatnonzero(self.ranks == rank)
        return int(found[0]) if len(found) else None

    def locate(self, frame: FrameObservation, *, num_to_skip: int) -> tuple[Ints, Ints]:
        """Finds the rows of a frame whose processes are not those that were located last; ranks that are new get one.

        Args:
            frame: The frame.
            num_to_skip: Observations of a new process that are left out.

        Returns:
            Rows that are of other processes than before, and those of them that are other devices than before.
        """
        row_of = {rank: row for row, rank in enumerate(self.ranks.tolist())}
        fresh = [rank for rank in frame.ranks.tolist() if rank not in row_of]
        row_of |= {rank: row for row, rank in enumerate(fresh, start=len(self))}
        self.ranks = np.append(self.ranks, np.array(fresh, dtype=np.int64))
        self.incarnations = np.append(self.incarnations, np.full(len(fresh), -1))
        self.num_to_skip = np.append(self.num_to_skip, np.zeros(len(fresh), dtype=np.int64))
        self.nodes, self.devices = self.nodes + [""] * len(fresh), self.devices + [""] * len(fresh)
        rows = np.array([row_of[rank] for rank in frame.ranks.tolist()], dtype=np.int64)
        replaced, moved = [], []
        for row, incarnation, node, device in zip(
            rows.tolist(), frame.incarnations.tolist(), frame.nodes, frame.devices, strict=True
        ):
            has_moved = self.nodes[row] != node or self.devices[row] != device or not device
            if self.incarnations[row] != incarnation or has_moved:
                replaced.append(row)
                moved += [row] if has_moved else []
                self.incarnations[row], self.nodes[row], self.devices[row] = incarnation, node, device
                self.num_to_skip[row] = num_to_skip
        self._located, self.located_rows = np.stack((frame.ranks, frame.incarnations)), rows
        self._places = frame.nodes, frame.devices
        self.hosts = np.unique(self.nodes, return_inverse=True)[1]
        return np.array(replaced, dtype=np.int64), np.array(moved, dtype=np.int64)

    def are_of(self, frame: FrameObservation) -> bool:
        """Whether a frame is of the processes that were located last, where they ran then."""
        processes = np.stack((frame.ranks, frame.incarnations))
        return self._places == (frame.nodes, frame.devices) and np.array_equal(self._located, processes)

    def skip_next(self) -> None:
        """Every device's next observation is to be left out."""
        self.num_to_skip = np.maximum(self.num_to_skip, 1)

    def take_skips(self, rows: Ints) -> Bools | None:
        """True for the rows whose observation is to be left out, None for none; it is counted as left out."""
        skipped: Bools = self.num_to_skip[rows] > 0
        if not skipped.any():
            return None
        self.num_to_skip[rows[skipped]] -= 1
        return skipped
