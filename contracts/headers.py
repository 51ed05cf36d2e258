"""Headers of every record: content type and CloudEvents 1.0 in Kafka's binary mode."""

import uuid
from datetime import UTC, datetime

from evenkeel.contracts.topics import Topic

CONTENT_TYPE = "application/protobuf"


def record_headers(topic: Topic, source: str, *, event_id: str | None = None) -> list[tuple[str, bytes]]:
    """Headers for one record of ``topic``.

    Args:
        topic: Where the record goes.
        source: Who writes it, for example ``evenkeel/detector``.
        event_id: Natural id of the event where it has one, so that a repeated record keeps its id; else random.
    """
    return [
        ("content-type", CONTENT_TYPE.encode()),
        ("ce_specversion", b"1.0"),
        ("ce_id", (event_id or uuid.uuid4().hex).encode()),
        ("ce_source", source.encode()),
        ("ce_type", topic.message.encode()),
        ("ce_time", datetime.now(UTC).isoformat().encode()),
    ]
