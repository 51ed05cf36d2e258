"""What the telemetry service counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from evenkeel.services.common.metrics import SHORT_SECONDS_BUCKETS


class TelemetryMetrics:
    """Made once, in the composition root, and passed down."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Gauge("evenkeel_telemetry_jobs", "Jobs that are being watched", registry=registry)
        self.samples = Counter("evenkeel_telemetry_samples", "Samples taken in", ("outcome",), registry=registry)
        self.frames = Counter("evenkeel_telemetry_frames", "Frames closed", ("complete",), registry=registry)
        self.missing_entries = Counter(
            "evenkeel_telemetry_missing_entries", "Ranks that were missing in closed frames", registry=registry
        )
        self.observations = Counter(
            "evenkeel_telemetry_observations", "Observations sent", ("kind",), registry=registry
        )
        self.frame_seconds = Histogram(
            "evenkeel_telemetry_frame_seconds",
            "Arrival of a frame's last sample to its acknowledgement by Kafka, once for frames that came together",
            buckets=SHORT_SECONDS_BUCKETS,
            registry=registry,
        )
        self.failures = Counter(
            "evenkeel_telemetry_failures", "Jobs begun anew because joining their samples failed", registry=registry
        )
        self.ranks_behind = Gauge(
            "evenkeel_telemetry_ranks_behind",
            "Ranks whose samples are in no frame, because their iterations are far behind those of their peers",
            registry=registry,
        )
        self.rollups = Counter("evenkeel_telemetry_rollups", "Rollup rows, by outcome", ("outcome",), registry=registry)
        self.rollups_waiting = Gauge(
            "evenkeel_telemetry_rollups_waiting", "Rollup rows not written yet", registry=registry
        )
        self.lost_records = Counter(
            "evenkeel_telemetry_lost_records", "Records that ranks sent and that never came", registry=registry
        )
        self.dropped_by_ranks = Counter(
            "evenkeel_telemetry_dropped_by_ranks", "Samples that ranks dropped, by their own count", registry=registry
        )
