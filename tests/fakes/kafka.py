"""Kafka in memory: the ports of ``evenkeel.services.common.kafka`` over dicts and lists, with the power to go away."""

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from evenkeel.services.common.kafka.ports import AssignmentListener
from evenkeel.services.common.kafka.records import ConsumedRecord, OutgoingRecord, Partition


class FakeBroker:
    """Topics with a fixed number of partitions, committed offsets, and group membership with rebalances."""

    def __init__(self, *, num_partitions: int = 1) -> None:
        self.num_partitions = num_partitions
        self.logs: dict[Partition, list[ConsumedRecord]] = defaultdict(list)
        self.committed: dict[tuple[str, Partition], int] = {}
        self.reachable = asyncio.Event()
        self.reachable.set()
        self.appended = asyncio.Condition()
        self._members: dict[str, list[FakeConsumer]] = defaultdict(list)

    def partitions(self, topic: str) -> list[Partition]:
        return [Partition(topic, number) for number in range(self.num_partitions)]

    def records(self, topic: str) -> list[ConsumedRecord]:
        return [record for partition in self.partitions(topic) for record in self.logs[partition]]

    async def append(self, record: OutgoingRecord) -> None:
        number = zlib.crc32(record.key or b"") % self.num_partitions
        partition = Partition(record.topic, number)
        log = self.logs[partition]
        log.append(
            ConsumedRecord(
                partition=partition,
                offset=len(log),
                timestamp_seconds=0.0,
                key=record.key,
                value=record.value,
                headers=tuple(record.headers),
            )
        )
        async with self.appended:
            self.appended.notify_all()

    async def join(self, consumer: "FakeConsumer") -> None:
        await self._rebalance(consumer.group, [*self._members[consumer.group], consumer])

    async def leave(self, consumer: "FakeConsumer") -> None:
        members = self._members[consumer.group]
        if consumer in members:
            await self._rebalance(consumer.group, [each for each in members if each is not consumer])

    async def _rebalance(self, group: str, members: "list[FakeConsumer]") -> None:
        for member in self._members[group]:
            if member.positions and member in members:
                await member.listener.revoked(list(member.positions))
        self._members[group] = members
        for index, member in enumerate(members):
            mine = [
                partition
                for topic in member.topics
                for partition in self.partitions(topic)
                if partition.number % len(members) == index
            ]
            member.positions = {each: self.committed.get((group, each), 0) for each in mine}
            await member.listener.assigned(mine)


class FakeProducer:
    """Appends at once; waits while the broker is away."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def start(self) -> None:
        await self._broker.reachable.wait()

    async def send_all(self, records: Sequence[OutgoingRecord]) -> None:
        await self._broker.reachable.wait()
        for record in records:
            await self._broker.append(record)

    async def stop(self) -> None:
        return None


class FakeConsumer:
    """A group member."""

    def __init__(self, broker: FakeBroker, *, topics: Collection[str], group: str) -> None:
        self.broker = broker
        self.topics = tuple(topics)
        self.group = group
        self.positions: dict[Partition, int] = {}
        self.listener: AssignmentListener

    async def start(self, listener: AssignmentListener) -> None:
        self.listener = listener
        await self.broker.reachable.wait()
        await self.broker.join(self)

    async def poll(
        self, *, timeout_seconds: float, max_records: int, without: Collection[Partition] = ()
    ) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        found = self._fetch(max_records, without)
        if not found:
            try:
                async with asyncio.timeout(timeout_seconds), self.broker.appended:
                    await self.broker.appended.wait_for(self._has_unread)
            except TimeoutError:
                return {}
            found = self._fetch(max_records, without)
        return found

    def seek(self, partition: Partition, offset: int) -> None:
        assert partition in self.positions
        self.positions[partition] = offset

    async def start_offsets(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return {each: self.broker.committed.get((self.group, each), 0) for each in partitions}

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        if not self.broker.reachable.is_set() or not set(offsets) <= set(self.positions):
            return False
        self.broker.committed.update({(self.group, each): offset for each, offset in offsets.items()})
        return True

    async def unread(self) -> Mapping[Partition, int]:
        if not self.broker.reachable.is_set():
            raise OSError("the fake broker is away")
        return {each: len(self.broker.logs[each]) - position for each, position in self.positions.items()}

    async def stop(self) -> None:
        await self.broker.leave(self)
        self.positions = {}

    def _has_unread(self) -> bool:
        return self.broker.reachable.is_set() and any(
            len(self.broker.logs[each]) > position for each, position in self.positions.items()
        )

    def _fetch(self, max_records: int, without: Collection[Partition]) -> dict[Partition, list[ConsumedRecord]]:
        if not self._has_unread():
            return {}
        found: dict[Partition, list[ConsumedRecord]] = {}
        for partition, position in self.positions.items():
            if partition in without:
                continue
            records = self.broker.logs[partition][position : position + max_records]
            if records:
                found[partition] = records
                self.positions[partition] = position + len(records)
                max_records -= len(records)
                if max_records <= 0:
                    break
        return found
