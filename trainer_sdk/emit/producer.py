"""The Kafka producer of the emit path: every setting that matters, in one place."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from aiokafka import AIOKafkaProducer

START_TIMEOUT_SECONDS = 5.0
SEND_TIMEOUT_SECONDS = 6.0
STOP_TIMEOUT_SECONDS = 0.5


def create_producer(bootstrap_servers: str, client_id: str, security: Mapping[str, Any]) -> AIOKafkaProducer:
    """A producer for telemetry, not started. Must be called on the loop that will use it.

    Args:
        bootstrap_servers: ``host:port[,host:port]``.
        client_id: Shown in the broker's logs.
        security: From :func:`evenkeel.contracts.kafka_security.kafka_security`.

    Telemetry may lose a record when a broker dies: acks=1. The emitter sends one record at a time and packs into it
    what piled up meanwhile, so the client itself need not linger: an event that a rank died leaves at once.
    """
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        client_id=client_id,
        acks=1,
        enable_idempotence=False,
        linger_ms=0,
        # aiokafka needs cramjam for lz4; its gzip costs more than it saves on records of this size.
        compression_type="lz4" if find_spec("cramjam") else None,
        max_request_size=1 << 20,
        request_timeout_ms=5_000,
        retry_backoff_ms=200,
        metadata_max_age_ms=60_000,
        connections_max_idle_ms=300_000,
        **security,
    )
