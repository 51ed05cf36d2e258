"""What the rest of the code knows of Kafka, in small protocols: of a client library, and of whoever handles records.

``tests/fakes/kafka.py`` implements them in memory; one set of tests runs against both. All methods belong to the event
loop's thread.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from evenkeel.services.common.kafka.records import Batch, ConsumedRecord, OutgoingRecord, Partition, Rejection

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
Decoder = Callable[[ConsumedRecord], M]
"""Makes a message of a record, or raises :class:`RejectedRecordError` (or any ValueError) if it is poison."""


class Producer(Protocol):
    """Writes records, at least once."""

    async def send_all(self, records: Sequence[OutgoingRecord]) -> None:
        """Returns when the broker has acknowledged every record; waits for as long as the broker is away.

        After an outage some records may be there twice; the order per key is kept up to such repetitions.
        """
        ...


class AssignmentListener(Protocol):
    """Told by a consumer which partitions are this instance's. The consumer waits for the answers."""

    async def assigned(self, partitions: Collection[Partition]) -> None:
        """From now on these partitions, and no others, are ours; called before their first record is delivered."""
        ...

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """These were ours; somebody else may have them next. The last chance to commit."""
        ...


class Consumer(Protocol):
    """Reads records as a member of a group."""

    async def start(self, listener: AssignmentListener) -> None:
        """Joins the group; waits for as long as the broker is away."""
        ...

    async def poll(
        self, *, timeout_seconds: float, max_records: int, without: Collection[Partition] = ()
    ) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        """The next records of every partition that has some, but for some; empty when none came in time."""
        ...

    def seek(self, partition: Partition, offset: int) -> None:
        """Makes ``offset`` the next one to be read of an assigned partition."""
        ...

    async def start_offsets(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """The group's committed offsets, or the partitions' first ones where there is none; waits for an answer."""
        ...

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """Commits the next offsets to read; False if the broker is away or the partitions are no longer ours."""
        ...

    async def unread(self) -> Mapping[Partition, int]:
        """How many records of every assigned partition are not read yet.

        Raises:
            OSError: The broker does not answer.
        """
        ...

    async def stop(self) -> None:
        """Leaves; does not wait for a broker that is away. A static member keeps its partitions for a restart."""
        ...


class Handler(Protocol[M_contra]):
    """What a service does with its records. Only ``handle`` is called concurrently: for several partitions at a time.

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
