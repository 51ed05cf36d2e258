"""What the scheduler counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class SchedulerMetrics:
    """Counters of one process; labels take few values."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failures = Counter(
            "evenkeel_scheduler_failures",
            "Failures on one job's state, which begins anew from its history: in a verdict, profile, end or suspicion, "
            "a registration, the finish of the job, one of its tasks, or where it began (begin)",
            ("where",),
            registry=registry,
        )
        self.jobs = Gauge("evenkeel_scheduler_jobs", "Jobs that run", registry=registry)
        self.jobs_in_state = Gauge(
            "evenkeel_scheduler_jobs_in_state",
            "Jobs that are running, reshaping, stuck or degraded",
            ("state",),
            registry=registry,
        )
        self.verdicts = Counter("evenkeel_scheduler_verdicts", "Verdicts taken in", ("kind",), registry=registry)
        self.plans = Counter(
            "evenkeel_scheduler_plans", "Plans that entered a state", ("mode", "state"), registry=registry
        )
        self.decisions = Counter(
            "evenkeel_scheduler_decisions", "Plans weighed, by outcome", ("choice",), registry=registry
        )
        self.planner_failures = Counter(
            "evenkeel_scheduler_planner_failures",
            "Questions that the planner's process did not answer: it was being started, ended, took too long or failed",
            registry=registry,
        )
        self.solve_seconds = Histogram(
            "evenkeel_scheduler_solve_seconds", "Time to solve a plan", buckets=_SECONDS_BUCKETS, registry=registry
        )
        self.phase_seconds = Histogram(
            "evenkeel_scheduler_plan_phase_seconds",
            "From the start of a plan to a state",
            ("state",),
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.probes = Counter(
            "evenkeel_scheduler_probes",
            "Suspicions of a device or a link that asked for a probe: answered, timed_out, away, refused, "
            "gone (somebody to ask is), busy (the job is probed already)",
            ("what", "outcome"),
            registry=registry,
        )
        self.probe_seconds = Histogram(
            "evenkeel_scheduler_probe_seconds",
            "From asking for a probe to its answer, most of it the wait for an iteration border",
            ("what",),
            buckets=(*_SECONDS_BUCKETS, 20.0, 60.0),
            registry=registry,
        )
