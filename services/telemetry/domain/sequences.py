"""Notices, by the numbers on a process's records, which of them never came. Pure."""

import numpy as np

from evenkeel.numeric.arrays import Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.domain.slots import Slots


class RecordSequences:
    """The newest record number of every process of one job."""

    def __init__(self) -> None:
        """Starts knowing none."""
        self._slots = Slots()
        # One row a process: its newest record's number, -1 before the first one, and samples dropped by then.
        self._newest: Ints = np.zeros((0, 2), dtype=np.int64)

    def add(self, numbers: Ints) -> tuple[int, int]:
        """Takes in the numbers of some records.

        Args:
            numbers: One row a record: whose, of which of its processes, its number, and samples that the process has
                dropped so far.

        Returns:
            How many records are missing just before these, and how many more samples their processes dropped. Both are
            0 for a process's first record and for one that came twice.
        """
        slots = self._slots.of(numbers[:, 0], numbers[:, 1])
        if len(self._slots) > len(self._newest):
            grown = np.full((2 * len(self._slots), 2), -1, dtype=np.int64)
            grown[: len(self._newest)] = self._newest
            self._newest = grown
        return _follow(slots, np.ascontiguousarray(numbers), self._newest)


@compiled
def _follow(slots: Ints, numbers: Ints, newest: Ints) -> tuple[int, int]:
    """Missing records and dropped samples of all records together.

    Args:
        slots: Row of ``newest`` of each record's process.
        numbers: One row a record: rank, incarnation, its number, samples dropped.
        newest: One row a process, as for ``RecordSequences``.
    """
    gap = more = 0
    for row in range(len(slots)):
        slot, sequence, dropped = slots[row], numbers[row, 2], numbers[row, 3]
        known = newest[slot, 0]
        if known < 0:
            newest[slot, 0], newest[slot, 1] = sequence, dropped
        elif sequence > known:
            gap += sequence - known - 1
            more += max(0, dropped - newest[slot, 1])
            newest[slot, 0], newest[slot, 1] = sequence, max(dropped, newest[slot, 1])
    return gap, more
