"""The loop's limits, and how many records it takes at once: as many as are worked off in a moment."""

from dataclasses import dataclass

TARGET_SECONDS = 0.2
# Where CPU time is hard to come by, or something else is waited for, a turn may last so many times as long.
SECONDS_A_CPU_SECOND = 10.0
FEWEST_RECORDS = 16
MOST_RECORDS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """The loop's own limits.

    Attributes:
        tick_seconds: Longest time between two calls of ``Handler.tick``.
        max_records: Most records taken at once; how many, the time decides that they take.
        checkpoint_seconds: Longest time from a record handled to its commit.
        checkpoint_records: Most records handled between two commits.
        revoke_timeout_seconds: One deadline for all that is done when partitions are taken away or the loop ends.
        lag_seconds: Time between two looks at the lag, which also notice that Kafka is away.
        stall_seconds: A consumer that has unread records and delivers none for so long is broken: the loop ends.
    """

    tick_seconds: float = 0.05
    max_records: int = MOST_RECORDS
    checkpoint_seconds: float = 0.5
    checkpoint_records: int = 20_000
    revoke_timeout_seconds: float = 5.0
    lag_seconds: float = 2.0
    stall_seconds: float = 30.0


class BatchPace:
    """Follows the CPU time that batches take. Pure: the caller has the clock.

    It begins with the smallest: a job's first record may cost a hundred times what the next one does. A batch that took
    too long halves the next at most, a full one that was quick doubles it at most. One that was not full says nothing
    of larger ones.

    Args:
        most: Records of the largest.
    """

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._most = most
        self.max_records = min(FEWEST_RECORDS, most)

    def took(self, num_records: int, seconds: float) -> None:
        """A batch of so many records took so long."""
        factor = min(max(TARGET_SECONDS / max(seconds, 1e-6), 0.5), 2.0)
        if factor < 1.0 or num_records >= self.max_records:
            fewest = min(FEWEST_RECORDS, self._most)
            self.max_records = min(max(round(self.max_records * factor), fewest), self._most)
