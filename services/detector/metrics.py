"""What the detector counts, beside what the Kafka loop counts for it."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LAG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class DetectorMetrics:
    """Metrics of one detector process; made once, passed down."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.verdicts = Counter("evenkeel_detector_verdicts", "Verdicts published", ("kind",), registry=registry)
        self.profiles = Counter("evenkeel_detector_profiles", "Profiles published", registry=registry)
        self.suspicions = Counter("evenkeel_detector_suspicions", "Probes asked for", registry=registry)
        self.failures = Counter(
            "evenkeel_detector_failures", "Jobs begun anew because their detector failed", registry=registry
        )
        self.rank_samples = Counter("evenkeel_detector_rank_samples", "Samples judged", registry=registry)
        self.jobs = Gauge("evenkeel_detector_jobs", "Jobs watched by this instance", registry=registry)
        self.lag_seconds = Histogram(
            "evenkeel_detector_lag_seconds",
            "From an observation's last sample or event at the telemetry service to its findings published",
            buckets=_LAG_BUCKETS,
            registry=registry,
        )
        self.snapshot_bytes = Counter("evenkeel_detector_snapshot_bytes", "Snapshot bytes written", registry=registry)
        self.snapshot_failures = Counter(
            "evenkeel_detector_snapshot_failures", "Rounds of snapshots that could not be written", registry=registry
        )
