"""Which partitions are ours, how far each was handled, and when the next commit is due. Pure: time is passed in."""

from collections.abc import Collection, Mapping

from evenkeel.services.common.kafka.records import Partition


class Checkpoint:
    """Handled offsets of the partitions that are ours. They only grow, until a partition is dropped or all begin anew.

    The order around a commit is fixed: effects (produced records, rows) first, then the handler's snapshot, then the
    offsets that the snapshot allows. So what is committed never runs ahead of what is durable.
    """

    def __init__(self, *, interval_seconds: float, max_records: int) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            interval_seconds: Commit at the latest so long after the first uncommitted record.
            max_records: Commit at the latest after so many.
        """
        self._interval_seconds = interval_seconds
        self._max_records = max_records
        self._handled: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._num_pending = 0
        self._pending_since_seconds: float | None = None

    def begin(self, starts: Mapping[Partition, int]) -> None:
        """These partitions are ours, and no others; each is read from its offset on."""
        self._handled, self._committed = dict(starts), dict(starts)

    def drop(self, partitions: Collection[Partition]) -> None:
        """Partitions were taken away: whatever was not committed is the next owner's."""
        for partition in partitions:
            self._handled.pop(partition, None)
            self._committed.pop(partition, None)

    def handled(self, partition: Partition, next_offset: int, *, num_records: int, now_seconds: float) -> None:
        """Everything of ``partition`` before ``next_offset`` was handled.

        Raises:
            ValueError: ``next_offset`` goes backwards; the caller has mixed up partitions or generations.
        """
        if next_offset < self._handled[partition]:
            raise ValueError(f"{partition} went backwards: {self._handled[partition]} to {next_offset}")
        self._handled[partition] = next_offset
        self._num_pending += num_records
        if self._pending_since_seconds is None:
            self._pending_since_seconds = now_seconds

    def due(self, now_seconds: float) -> bool:
        """Whether to commit now."""
        if self._pending_since_seconds is None:
            return False
        waited_seconds = now_seconds - self._pending_since_seconds
        return self._num_pending >= self._max_records or waited_seconds >= self._interval_seconds

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The first offset of each that was not handled yet."""
        return self._handled

    def to_commit(self, allowed: Mapping[Partition, int]) -> dict[Partition, int]:
        """What a commit should carry: the allowed offsets that are news."""
        news = {}
        for partition, offset in allowed.items():
            limit = self._handled.get(partition)
            if limit is not None and self._committed.get(partition, -1) < min(offset, limit):
                news[partition] = min(offset, limit)
        return news

    def committed(self, offsets: Mapping[Partition, int], now_seconds: float) -> None:
        """A commit went through; what the handler held back stays pending."""
        self._committed.update({each: offset for each, offset in offsets.items() if each in self._handled})
        behind = any(self._committed.get(each, -1) < offset for each, offset in self._handled.items())
        self._num_pending = 0
        self._pending_since_seconds = now_seconds if behind else None

    def postpone(self, now_seconds: float) -> None:
        """A commit failed: try again after another interval."""
        self._num_pending = 0
        self._pending_since_seconds = now_seconds
