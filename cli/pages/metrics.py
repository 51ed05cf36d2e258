"""``docs/metrics.md``, from the classes that count."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from evenkeel.services.common.metrics import KafkaMetrics
from evenkeel.services.detector.metrics import DetectorMetrics
from evenkeel.services.scheduler.adapters.api.interceptor import FleetApiMetrics
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.telemetry.metrics import TelemetryMetrics

GROUPS: dict[str, tuple[Callable[[CollectorRegistry], Any], ...]] = {
    "Every service": (KafkaMetrics,),
    "telemetry": (TelemetryMetrics,),
    "detector": (DetectorMetrics,),
    "scheduler": (SchedulerMetrics, FleetApiMetrics),
}
INTRODUCTION = """\
# Metrics

`make generate` writes this page from the classes that count. Each service answers on `EVENKEEL_METRICS_HOST` and
`EVENKEEL_METRICS_PORT`: `/metrics` for Prometheus, `/healthz` (200, or 503 with a body that says which part misses what),
`/livez` (200 while it turns at all). Where the port is any free one, as on the local stack, `evenkeel stack status` shows
it. Counters end in `_total`, histograms have `_bucket`, `_sum`, `_count`; the process's own memory, CPU and open files
are there too. No label is ever a rank, an iteration or a job. A counter with labels has no series before its first event, and
`increase()` does not see that one: for "grows" ask `increase(x[10m]) > 0 or (x unless x offset 10m)`.

## What to be woken by

| when | what it is | look at |
|---|---|---|
| `/healthz` answers 503, or nothing does, for a minute | a dependency is away, or the service is down | [running.md](running.md#what-happens-when-) |
| `evenkeel_scheduler_jobs_in_state{state="stuck"} > 0` | a job cannot go on, or nothing is heard of it | `evenkeel jobs list --open`, then `evenkeel jobs describe` says why |
| `evenkeel_scheduler_jobs_in_state{state="degraded"} > 0` | a job that nobody can reshape has lost ranks | `evenkeel verdicts explain`: the advice is its last line |
| `evenkeel_kafka_unreachable == 1` | Kafka does not answer this service | the brokers |
| `evenkeel_kafka_lag_records` that keeps growing | the service is slower than what comes in | its CPU; more partitions or fewer ranks an instance |
| `evenkeel_kafka_dead_letters_total` that grows | records that cannot be read | the dead-letter topic's headers ([topics.md](topics.md)) |
| `evenkeel_kafka_dead_letters_total` with `error` `signature`, `unsigned`, `unknown_key`, `speaker` or `unregistered_process` | somebody tells telemetry of a registered job who does not have its token | the dead letters' producer; processes of the job without `EVENKEEL_JOB_TOKEN`, or with another than it was registered with ([telemetry.md](telemetry.md#who-is-believed)) |
| `evenkeel_telemetry_rollups_waiting` beyond some thousands, `evenkeel_detector_snapshot_failures_total` that grows | PostgreSQL takes no writes | its disk, its connections |
| `evenkeel_detector_failures_total` that grows | a mistake of ours: the detector of one job raised; the job was begun anew, others are not concerned | the log line with `job_id` and the traceback: report it; a record that even a new detector cannot take is in the dead letters |
| `evenkeel_telemetry_failures_total` that grows | the same of the telemetry service: joining one job's samples raised; frames are complete again within some iterations, and rollups of the windows that were open have fewer iterations | the same; records that fail a second time are in the dead letters under `job_failed` |
| `evenkeel_scheduler_failures_total` that grows | the same of the scheduler: its work for one job raised; the job trains on and begins anew from its history after a pause, from 0.2 s to 5 minutes; [`where`](architecture.md#when-the-work-for-one-job-fails) says in what | the log line with `job_id`, `where` and the traceback: report it; records that fail a second time are in the dead letters under `job_failed`. `begin` that grows: a job that cannot go on from its history and that nobody repairs meanwhile |
| `evenkeel_telemetry_ranks_behind > 0` | ranks that nobody can judge | telemetry's log names them |
| `evenkeel_scheduler_plans_total{state="aborted"}` that grows | plans that ranks refuse or cannot carry out | `evenkeel plans list`, `explain` |
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, classes in GROUPS.items():
        rows = [_row(metric) for one in classes for metric in _metrics(one)]
        parts.append("\n".join([f"## {name}\n", "| name | kind | what |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _metrics(counts: Callable[[CollectorRegistry], Any]) -> Iterator[MetricWrapperBase]:
    """What an object counts, in the order of its attributes' names."""
    for _, metric in sorted(vars(counts(CollectorRegistry())).items()):
        if isinstance(metric, MetricWrapperBase):
            yield metric


def _row(metric: MetricWrapperBase) -> str:
    (described,) = metric.describe()
    suffix = "_total" if described.type == "counter" else ""
    labels = f"{{{','.join(metric._labelnames)}}}" if metric._labelnames else ""
    return f"| `{described.name}{suffix}{labels}` | {described.type} | {described.documentation} |"
