"""What a service gives the consume loop: its handler, what decodes records, and the loop's limits."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from evenkeel.services.common.kafka.pace import MOST_RECORDS
from evenkeel.services.common.kafka.records import Batch, ConsumedRecord, Partition, Rejection

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
Decoder = Callable[[ConsumedRecord], M]
"""Makes a message of a record, or raises :class:`RejectedRecordError` (or any ValueError) if it is poison."""


class Handler(Protocol[M_contra]):
    """What a service does with its records. Never called concurrently.

    All methods belong to the loop's thread and take no longer than a moment of it: work goes to the :class:`Worker`.
    """

    async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Loads the state of partitions that are now ours, and only these.

        Returns:
            Where to start reading, for the partitions of which a snapshot says so; it wins over the committed offset.
        """
        ...

    async def handle(self, batch: Batch[M_contra]) -> Sequence[Rejection]:
        """Takes in one batch. Returns when its effects are durable or part of the state that a snapshot will cover.

        An exception ends the process: state may be half changed, and a restart rebuilds it. A handler of many jobs
        lets nothing through here that only one of them trips over: a restart would read the same records again.

        Returns:
            Records that turned out to be poison.
        """
        ...

    async def tick(self, now_seconds: float) -> None:
        """Called several times a second (``LoopConfig.tick_seconds``), also when no record comes; Unix seconds."""
        ...

    async def checkpoint(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Makes the state durable; called before each commit and before partitions are given away.

        Args:
            positions: Next offset of every partition of which something was handled.

        Returns:
            What may be committed: for each partition the first offset that a restart must read; not above
            ``positions``. A partition left out is not committed now.
        """
        ...

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Forgets the state of partitions; a checkpoint came just before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """The loop's own limits.

    Attributes:
        tick_seconds: Longest time between two calls of ``Handler.tick``.
        max_records: Most records taken at once; how many, the time decides that they take.
        turn_seconds: After so long in a turn what else was fetched waits for the next.
        checkpoint_seconds: Longest time from a record handled to its commit.
        checkpoint_records: Most records handled between two commits.
        revoke_timeout_seconds: One deadline for all that is done when partitions are taken away or the loop ends.
        lag_seconds: Time between two looks at the lag, which also notice that Kafka is away.
        stall_seconds: A consumer that has unread records and delivers none for so long is broken: the loop ends.
    """

    tick_seconds: float = 0.05
    max_records: int = MOST_RECORDS
    turn_seconds: float = 0.25
    checkpoint_seconds: float = 0.5
    checkpoint_records: int = 20_000
    revoke_timeout_seconds: float = 5.0
    lag_seconds: float = 2.0
    stall_seconds: float = 30.0
