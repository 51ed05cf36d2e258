"""Notices, by the numbers on a process's records, which of them never came. Pure."""

from collections.abc import Iterable


class RecordSequences:
    """The newest record number of every process of one job."""

    def __init__(self) -> None:
        """Starts knowing none."""
        self._newest: dict[tuple[int, int], tuple[int, int]] = {}

    def add_all(self, numbers: Iterable[tuple[int, int, int, int]]) -> tuple[int, int]:
        """Takes in the numbers of many records, each as for :meth:`add`; returns the sums of what that returns."""
        gap = dropped = 0
        for rank, incarnation, sequence, num_dropped in numbers:
            known = self._newest.get((rank, incarnation))
            if known == (sequence - 1, num_dropped):  # as nearly always
                self._newest[rank, incarnation] = (sequence, num_dropped)
                continue
            missing, more = self.add(rank, incarnation, sequence, num_dropped)
            gap += missing
            dropped += more
        return gap, dropped

    def add(self, rank: int, incarnation: int, sequence: int, num_dropped: int) -> tuple[int, int]:
        """Takes in one record's numbers.

        Args:
            rank: Whose record.
            incarnation: Of which process.
            sequence: The record's number.
            num_dropped: Samples that the process has dropped so far.

        Returns:
            How many records are missing just before this one, and how many more samples the process dropped. Both are
            0 for a process's first record and for one that came twice.
        """
        process = (rank, incarnation)
        known = self._newest.get(process)
        if known is None:
            self._newest[process] = (sequence, num_dropped)
            return 0, 0
        newest, dropped = known
        if sequence <= newest:
            return 0, 0
        self._newest[process] = (sequence, max(dropped, num_dropped))
        return sequence - newest - 1, max(0, num_dropped - dropped)
