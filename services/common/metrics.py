"""Prometheus metrics: one registry per process, made in the composition root and passed down, never a global.

Label values stay few: topic, outcome, partition; never an iteration or a record's key.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

SHORT_SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


def create_registry() -> CollectorRegistry:
    """A fresh registry with the process's own figures (memory, CPU, open files, garbage collection)."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class KafkaMetrics:
    """What the Kafka loop and its producer count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.records = Counter(
            "evenkeel_kafka_records", "Records consumed, by outcome", ("topic", "outcome"), registry=registry
        )
        self.dead_letters = Counter(
            "evenkeel_kafka_dead_letters", "Records put into a dead-letter topic", ("topic", "error"), registry=registry
        )
        self.handle_seconds = Histogram(
            "evenkeel_kafka_handle_seconds",
            "Time to handle one batch of a partition",
            ("topic",),
            buckets=SHORT_SECONDS_BUCKETS,
            registry=registry,
        )
        self.record_age_seconds = Histogram(
            "evenkeel_kafka_record_age_seconds",
            "Age of a batch's newest record when it was received",
            ("topic",),
            buckets=SHORT_SECONDS_BUCKETS,
            registry=registry,
        )
        self.lag_records = Gauge(
            "evenkeel_kafka_lag_records", "Records not yet read", ("topic", "partition"), registry=registry
        )
        self.rebalances = Counter(
            "evenkeel_kafka_rebalances", "Times that partitions were assigned to this instance", registry=registry
        )
        self.commit_failures = Counter(
            "evenkeel_kafka_commit_failures", "Commits of offsets that failed and were tried again", registry=registry
        )
        self.produced = Counter("evenkeel_kafka_produced", "Records produced", ("topic",), registry=registry)
        self.produce_retries = Counter(
            "evenkeel_kafka_produce_retries", "Batches sent again on a fresh producer", registry=registry
        )
        self.unreachable = Gauge("evenkeel_kafka_unreachable", "1 while Kafka does not answer", registry=registry)
