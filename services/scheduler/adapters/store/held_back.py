"""What waits for jobs that begin anew: records in order, each offered once more after its job failed at it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from evenkeel.services.common.kafka.records import Message, Partition

M = TypeVar("M")


@dataclass(slots=True, kw_only=True, eq=False)
class Held(Generic[M]):
    """One record.

    Attributes:
        message: The record and what was made of it.
        since_seconds: Unix seconds of its arrival.
        tries: How often its job failed when it was offered.
    """

    message: Message[M]
    since_seconds: float
    tries: int


class HeldBack(Generic[M]):
    """Records by job. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._held: dict[str, list[Held[M]]] = {}

    @property
    def job_ids(self) -> Sequence[str]:
        """Jobs of which something waits."""
        return tuple(self._held)

    @property
    def oldest_offsets(self) -> Mapping[Partition, int]:
        """The first offset of each partition that must be read again after a restart."""
        oldest: dict[Partition, int] = {}
        for each in self._all():
            record = each.message.record
            oldest[record.partition] = min(record.offset, oldest.get(record.partition, record.offset))
        return oldest

    def has(self, job_id: str) -> bool:
        """Whether something of a job waits: what comes later waits behind it."""
        return job_id in self._held

    def add(self, job_id: str, messages: Sequence[Message[M]], now_seconds: float, *, tries: int) -> None:
        """Messages wait behind those that wait already.

        Args:
            job_id: Their job.
            messages: In order.
            now_seconds: Unix seconds of their arrival.
            tries: How often the job failed when they were offered.
        """
        waiting = self._held.setdefault(job_id, [])
        waiting += [Held(message=message, since_seconds=now_seconds, tries=tries) for message in messages]

    def supersede(self, job_id: str, topic: str) -> None:
        """A later record of a topic makes those needless that wait untried."""
        self.drop(job_id, [one for one in self._held.get(job_id, ()) if _topic(one) == topic and not one.tries])

    def next_of(self, job_id: str) -> Sequence[Held[M]]:
        """What to offer next: all up to the first at which the job failed, or that one alone."""
        waiting = self._held.get(job_id, [])
        if waiting and waiting[0].tries:
            return waiting[:1]
        untried = next((place for place, one in enumerate(waiting) if one.tries), len(waiting))
        return waiting[:untried]

    def older_than(self, job_id: str, unix_seconds: float) -> Sequence[Held[M]]:
        """What of a job has waited since before then."""
        return [each for each in self._held.get(job_id, ()) if each.since_seconds < unix_seconds]

    def drop(self, job_id: str, over: Sequence[Held[M]]) -> None:
        """These wait no more."""
        left = [each for each in self._held.get(job_id, ()) if each not in over]
        if left:
            self._held[job_id] = left
        else:
            self._held.pop(job_id, None)

    def forget(self, partitions: Collection[Partition]) -> None:
        """Nothing of these partitions waits any more."""
        for job_id, waiting in list(self._held.items()):
            self.drop(job_id, [each for each in waiting if each.message.record.partition in partitions])

    def _all(self) -> Sequence[Held[M]]:
        return [each for waiting in self._held.values() for each in waiting]


def _topic(held: Held[M]) -> str:
    return held.message.record.partition.topic
