"""The settings of the Kafka client library, all in one place, and why they are what they are."""

from dataclasses import dataclass
from typing import Any

from aiokafka.errors import (
    CommitFailedError,
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from evenkeel.contracts.kafka_security import security_arguments
from evenkeel.services.common.kafka.records import ConsumedRecord, Partition
from evenkeel.services.common.settings import ServiceSettings

KAFKA_AWAY: tuple[type[BaseException], ...] = (
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
    GroupCoordinatorNotAvailableError,
    UnknownTopicOrPartitionError,
    OSError,
    TimeoutError,
)
"""Errors that mean: wait and try again. A missing topic is one of them: topics are made by a command."""

KAFKA_REFUSES: tuple[type[BaseException], ...] = (MessageSizeTooLargeError, TopicAuthorizationFailedError)
"""Errors that mean: the record or we ourselves are not wanted; somebody must change a setting."""

__all__ = ["KAFKA_AWAY", "KAFKA_REFUSES", "CommitFailedError", "KafkaClientConfig", "KafkaError", "consumed_record"]

# Another member hears that one is believed dead with its own next heartbeat: that is how late it takes over at most.
_HEARTBEATS_A_SESSION = 10
# A frame of a large job is larger than the library's 1 MiB.
_MAX_RECORD_BYTES = 16 * 1024 * 1024
# The client has one fetch on its way to a broker and leaves a partition out whose records still wait for a busy
# handler: what comes next for that partition waits for the fetch to end, with the library's default for half a second.
_FETCH_WAIT_MILLISECONDS = 100
# Less than the library's 40 s: a batch that is older than this fails and is sent again by a fresh producer.
_PRODUCE_TIMEOUT_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaClientConfig:
    """How to reach Kafka, and as whom.

    Attributes:
        bootstrap_servers: ``host:port[,host:port]``.
        client_id: Shown in the broker's logs; with a group, also the static member's id.
        security: Keyword arguments of the library for TLS and SASL.
        session_timeout_seconds: When a silent member's partitions go to another.
    """

    bootstrap_servers: str
    client_id: str
    security: dict[str, Any]
    session_timeout_seconds: float = 6.0

    @classmethod
    def from_settings(cls, settings: ServiceSettings, *, service: str) -> "KafkaClientConfig":
        """The configuration for one service from its settings."""
        password = settings.kafka_sasl_password
        return cls(
            bootstrap_servers=settings.kafka_bootstrap_servers,
            client_id=f"evenkeel-{service}-{settings.instance_id}",
            security=security_arguments(
                settings.kafka_security_protocol,
                settings.kafka_sasl_mechanism,
                settings.kafka_sasl_username,
                password.get_secret_value() if password else None,
                settings.kafka_ca_file,
            ),
            session_timeout_seconds=settings.kafka_session_timeout_seconds,
        )

    def producer_arguments(self) -> dict[str, Any]:
        """Every record acknowledged by all replicas, none twice within a connection's life, sent without delay."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "acks": "all",
            "enable_idempotence": True,
            "linger_ms": 0,
            "max_batch_size": 256 * 1024,
            "max_request_size": _MAX_RECORD_BYTES,
            "request_timeout_ms": round(_PRODUCE_TIMEOUT_SECONDS * 1000),
            "retry_backoff_ms": 50,
            **self.security,
        }

    def reader_arguments(self) -> dict[str, Any]:
        """A reader outside any group, which commits nothing."""
        return self._reading(f"{self.client_id}-reader") | {"request_timeout_ms": 10_000}

    def consumer_arguments(self, *, group: str) -> dict[str, Any]:
        """Offsets committed by us only, after the effects; a static member; nothing from aborted transactions."""
        return self._reading(self.client_id) | {
            "group_id": group,
            "group_instance_id": self.client_id,
            "session_timeout_ms": round(self.session_timeout_seconds * 1000),
            "heartbeat_interval_ms": round(self.session_timeout_seconds * 1000 / _HEARTBEATS_A_SESSION),
            "rebalance_timeout_ms": round(max(self.session_timeout_seconds, 10.0) * 1000),
            "max_poll_interval_ms": 300_000,
            "fetch_min_bytes": 1,
            "request_timeout_ms": 20_000,
            "metadata_max_age_ms": 60_000,
        }

    def _reading(self, client_id: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": client_id,
            "enable_auto_commit": False,
            # Nobody's first records are skipped: effects are idempotent, losses are not repairable.
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "max_partition_fetch_bytes": 4 * 1024 * 1024,
            "fetch_max_wait_ms": _FETCH_WAIT_MILLISECONDS,
            "retry_backoff_ms": 50,
            **self.security,
        }


def consumed_record(partition: Partition, raw: Any) -> ConsumedRecord:
    """Our record from the library's."""
    return ConsumedRecord(partition, raw.offset, raw.timestamp / 1000, raw.key, raw.value, raw.headers)
