"""Where poison records go: ``<topic>.dlq``, with the original key and bytes, and headers that say what happened.

Headers added to the original ones, all text in UTF-8: ``dlq-topic``, ``dlq-partition``, ``dlq-offset``,
``dlq-timestamp`` (Unix milliseconds), ``dlq-group``, ``dlq-error``, ``dlq-reason``, ``dlq-attempts``.
"""

from collections.abc import Sequence

import structlog

from evenkeel.services.common.kafka.ports import Producer
from evenkeel.services.common.kafka.records import OutgoingRecord, Rejection
from evenkeel.services.common.metrics import KafkaMetrics

SUFFIX = ".dlq"
_MAX_REASON_CHARACTERS = 500

_log = structlog.get_logger(__name__)


class DeadLetters:
    """Keeps what could not be used, so that it can be looked at and replayed."""

    def __init__(self, producer: Producer, metrics: KafkaMetrics, *, group: str) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            producer: Writes them.
            metrics: Counts them by topic and error.
            group: Whose reading failed.
        """
        self._producer = producer
        self._metrics = metrics
        self._group = group

    async def bury(self, rejections: Sequence[Rejection]) -> None:
        """Returns when all of them are in their dead-letter topics."""
        if not rejections:
            return
        await self._producer.send_all([dead_letter(each, group=self._group) for each in rejections])
        for each in rejections:
            self._metrics.dead_letters.labels(each.record.partition.topic, each.error).inc()
        first = rejections[0]
        _log.warning(
            "records rejected",
            count=len(rejections),
            topic=first.record.partition.topic,
            partition=first.record.partition.number,
            first_offset=first.record.offset,
            first_error=first.error,
            first_reason=first.reason[:_MAX_REASON_CHARACTERS],
        )


def dead_letter(rejection: Rejection, *, group: str) -> OutgoingRecord:
    """The record that goes into the dead-letter topic for a rejected one."""
    record = rejection.record
    added = {
        "dlq-topic": record.partition.topic,
        "dlq-partition": str(record.partition.number),
        "dlq-offset": str(record.offset),
        "dlq-timestamp": str(round(record.timestamp_seconds * 1000)),
        "dlq-group": group,
        "dlq-error": rejection.error,
        "dlq-reason": rejection.reason[:_MAX_REASON_CHARACTERS],
        "dlq-attempts": str(rejection.attempts),
    }
    kept = [(name, value) for name, value in record.headers if name not in added]
    return OutgoingRecord(
        topic=record.partition.topic + SUFFIX,
        key=record.key,
        value=record.value,
        headers=[*kept, *((name, value.encode(errors="replace")) for name, value in added.items())],
    )
