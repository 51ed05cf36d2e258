"""Makes a client of the library give each partition's records as :class:`FetchedRecords`, not one by one.

The library parses a fetch record by record while it is polled. Here it still fetches, keeps positions and forgets what
a seek or a rebalance made stale; only the step from a fetch's bytes to records is ours. What it holds back of itself
(``_client``, ``_fetcher``, ``_records``) is used in this module alone; its version is bounded for that.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import FetchResult
from aiokafka.protocol.fetch import FetchRequest

from evenkeel.services.common.kafka.fetched_records import OFFSET, FetchedRecords
from evenkeel.services.common.kafka.record_batches import read_batches
from evenkeel.services.common.kafka.records import ConsumedRecord, Partition

_NOWHERE = Partition("", -1)


class WholeFetchConsumer(AIOKafkaConsumer):  # type: ignore[misc] # the library is untyped
    """The library's consumer; ``getmany`` gives :class:`FetchedRecords`.

    Where a fetch holds something of a transaction or of an old format, it gives the library's own records.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._bytes_of: dict[TopicPartition, bytes] = {}
        self._send = self._client.send
        self._client.send = self._send_and_note

    async def start(self) -> None:
        """As the library's, but that what reads fetches is compiled before."""
        await asyncio.to_thread(warm_up)
        await super().start()
        self._fetcher._records = _Results(self._bytes_of, self._fetcher._records)

    async def _send_and_note(self, node_id: int, request: Any, **options: Any) -> Any:
        """Keeps the bytes of fetches until the fetcher, which goes on at once, has made results of them."""
        response = await self._send(node_id, request, **options)
        if isinstance(request, FetchRequest):
            self._bytes_of.clear()
            for topic, partitions in response.topics:
                for number, *_, raw in partitions:
                    self._bytes_of[TopicPartition(topic, number)] = raw
        return response


def warm_up() -> None:
    """Has what reads fetches compiled."""
    made_up = ConsumedRecord(_NOWHERE, 0, 0.0, b"", b"", [])
    assert [*FetchedRecords.of(_NOWHERE, [made_up])] == [made_up]


class _Results(OrderedDict[TopicPartition, Any]):
    """The fetcher's results by partition; each that is put in here reads its records at once."""

    def __init__(self, bytes_of: Mapping[TopicPartition, bytes], results: Mapping[TopicPartition, Any]) -> None:
        super().__init__()
        self._bytes_of = bytes_of
        self.update(results)

    def __setitem__(self, partition: TopicPartition, result: Any) -> None:
        raw = self._bytes_of.get(partition)
        if type(result) is FetchResult and raw is not None:
            result.getall = _WholeFetch(result, result.getall, partition, raw).getall
        super().__setitem__(partition, result)


class _WholeFetch:
    """What a fetch brought of one partition, instead of ``FetchResult.getall``."""

    def __init__(self, result: Any, one_by_one: Any, partition: TopicPartition, raw: bytes) -> None:
        self._result = result
        self._one_by_one = one_by_one
        self._partition = partition
        self._raw = raw
        self._records: FetchedRecords | None = None
        self._next_offset = -1

    def getall(self, max_records: int | None = None) -> Sequence[Any]:
        """The next records, and where to go on behind them."""
        result = self._result
        if not result.check_assignment(self._partition) or not result.has_more():
            return []
        progress = result._partition_records
        if self._records is None:
            found, self._raw = read_batches(self._raw), b""
            if found is None:
                result.getall = self._one_by_one
                return self._one_by_one(max_records)  # type: ignore[no-any-return] # the library is untyped
            buffer, places, self._next_offset = found
            # A batch is fetched whole, however far in it reading starts.
            places = places[places[:, OFFSET] >= progress.next_fetch_offset]
            self._records = FetchedRecords(Partition(*self._partition), buffer, places)
        records, self._records = self._records[:max_records], self._records[len(self._records[:max_records]) :]
        progress.next_fetch_offset = int(records.places[-1, OFFSET]) + 1 if len(self._records) else self._next_offset
        result._update_position()
        if not len(self._records):
            result._partition_records = None
        return records
