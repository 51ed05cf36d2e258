"""Notices, by the numbers on a process's batches, which of them never came. Pure."""

from evenkeel.contracts.batches import Batches


class BatchSequences:
    """The newest batch number of every process of one job."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, batches: Batches) -> tuple[int, int]:
        """Takes in the numbers of some batches.

        Returns:
            How many batches are missing just before these, and how many more iterations their processes dropped. Both
            are 0 for a process's first batch and for one that came twice.
        """
        num_missing = num_dropped = 0
        columns = (batches.rank, batches.incarnation, batches.sequence, batches.num_dropped)
        for rank, incarnation, sequence, dropped in zip(*(column.tolist() for column in columns), strict=True):
            known, known_dropped = self._newest.get((rank, incarnation), (sequence - 1, dropped))
            if sequence > known:
                num_missing += sequence - known - 1
                num_dropped += max(0, dropped - known_dropped)
                self._newest[rank, incarnation] = sequence, max(dropped, known_dropped)
        return num_missing, num_dropped
