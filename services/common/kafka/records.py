"""Records as they enter and leave, free of any client library."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Headers = Sequence[tuple[str, bytes]]
M_co = TypeVar("M_co", covariant=True)


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int


class ConsumedRecord(NamedTuple):
    """One record as the broker gave it. A tuple, because tens of thousands come a second.

    Attributes:
        partition: Where it was.
        offset: Where in the partition.
        timestamp_seconds: Unix seconds; set by its producer, or by the broker if the topic says so.
        key: Its key.
        value: Its bytes; None for a tombstone.
        headers: Its headers.
    """

    partition: Partition
    offset: int
    timestamp_seconds: float
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRecord:
    """One record to produce. Records with the same key keep their order.

    Attributes:
        topic: Where to.
        key: Decides the partition.
        value: Its bytes; None is a tombstone on a compacted topic.
        headers: Its headers.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Message(NamedTuple, Generic[M_co]):
    """A record whose value was decoded.

    Attributes:
        content: What the decoder made of the value.
        record: The record it came in.
    """

    content: M_co
    record: ConsumedRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[M_co]):
    """Consecutive records of one partition.

    Attributes:
        partition: Where they come from.
        records: All of them as they came, in order of offset.
        messages: What the topic's decoder made of them, without those that it could not decode: may be empty if all
            were poison, and is where the handler decodes whole batches itself.
        next_offset: The first offset after the batch, poison and gaps included.
        received_at_seconds: When they arrived here, Unix seconds.
    """

    partition: Partition
    records: Sequence[ConsumedRecord]
    messages: Sequence[Message[M_co]] = ()
    next_offset: int
    received_at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record that goes to the dead-letter topic.

    Attributes:
        record: The record, as it came.
        error: Class of the error, a word to group by.
        reason: One line for a person.
        attempts: How often it was tried.
    """

    record: ConsumedRecord
    error: str
    reason: str
    attempts: int = field(default=1)


class RejectedRecordError(ValueError):
    """A decoder's way to say that a record is poison: it goes to the dead-letter topic and the stream goes on."""

    def __init__(self, error: str, reason: str) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            error: A word to group and count by; from a closed set, since it becomes a metric's label.
            reason: One line for a person.
        """
        super().__init__(reason)
        self.error = error
        self.reason = reason
