"""What the rest of the code knows of Kafka: two small protocols, so that a client library is one file to swap.

``tests/fakes/kafka.py`` implements them in memory; one set of tests runs against both. All methods belong to the event
loop's thread.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from evenkeel.services.common.kafka.records import ConsumedRecord, OutgoingRecord, Partition


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

    async def poll(self, *, timeout_seconds: float, max_records: int) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        """The next records of every partition that has some; empty when none came in time."""
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
