"""The telemetry service's composition root: the only place that knows which parts are real."""

import asyncio
from contextlib import AsyncExitStack

from evenkeel.contracts.topics import BATCHES
from evenkeel.history.reads import job_tokens, registered_processes
from evenkeel.services.common.health import Health, health_server, ready_file
from evenkeel.services.common.kafka import (
    ConsumeLoop,
    DeadLetters,
    KafkaClientConfig,
    KafkaConsumer,
    KafkaProducer,
    LoopConfig,
)
from evenkeel.services.common.lifecycle import run_service
from evenkeel.services.common.metrics import KafkaMetrics, create_registry
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.common.settings import load_settings
from evenkeel.services.common.steady_clock import SteadyClock
from evenkeel.services.common.worker import Worker
from evenkeel.services.telemetry.adapters.job_keys import JobKeys, asking
from evenkeel.services.telemetry.adapters.rollup_writer import RollupWriter
from evenkeel.services.telemetry.adapters.tail import Tail
from evenkeel.services.telemetry.handler import TelemetryHandler
from evenkeel.services.telemetry.metrics import TelemetryMetrics
from evenkeel.services.telemetry.settings import TelemetrySettings

SERVICE = "telemetry"
# What a fetch brings of a partition, of the smallest records there are: some 50 ms of work, and one acknowledgement.
_MOST_RECORDS = 16_384


async def serve(settings: TelemetrySettings) -> None:
    """Runs the service until cancelled.

    Nothing is read before the database has told the jobs' keys; from then on frames flow without it and rollups wait.
    """
    registry = create_registry()
    kafka_metrics, metrics = KafkaMetrics(registry), TelemetryMetrics(registry)
    clock = SteadyClock()
    health = Health("kafka", "consumer", "postgres")
    config = KafkaClientConfig.from_settings(settings, service=SERVICE)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(
            health_server(health, registry, host=settings.metrics_host, port=settings.metrics_port)
        )
        await stack.enter_async_context(ready_file(settings.ready_file, metrics_port=port))
        engine = create_engine(
            settings.database_url.get_secret_value(), application_name=f"evenkeel-{SERVICE}", pool_size=2
        )
        stack.push_async_callback(engine.dispose)
        producer = KafkaProducer(config, kafka_metrics, on_change=health.witness("kafka", "producer"))
        stack.push_async_callback(producer.stop)
        await producer.start()
        consumer = KafkaConsumer(
            config,
            topics=[BATCHES.name],
            group=settings.telemetry_group,
            on_change=health.witness("kafka", "consumer"),
        )
        rollup_writer = RollupWriter(
            engine,
            metrics,
            max_rows=settings.rollup_buffer_rows,
            on_change=health.witness("postgres", "rollups"),
        )
        job_keys = JobKeys(
            asking(engine, job_tokens),
            asking(engine, registered_processes),
            allow_unsigned=settings.allow_unsigned,
            on_change=health.witness("postgres", "keys"),
        )
        worker = Worker()
        handler = TelemetryHandler(
            producer,
            Tail(config),
            consumer.start_offsets,
            consumer.nothing_more_since,
            rollup_writer,
            job_keys,
            metrics,
            worker=worker,
            rollup_iterations=settings.rollup_iterations,
            job_idle_seconds=settings.job_idle_seconds,
            clock=clock,
        )
        loop = ConsumeLoop(
            consumer,
            handler,
            decoders={BATCHES.name: None},
            dead_letters=DeadLetters(producer, kafka_metrics, group=settings.telemetry_group),
            metrics=kafka_metrics,
            worker=worker,
            on_assigned=lambda partitions: health.report(
                "consumer", ready=True, detail=f"{len(partitions)} partitions"
            ),
            config=LoopConfig(max_records=_MOST_RECORDS),
            clock=clock,
        )
        await job_keys.load()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(job_keys.run())
            tasks.create_task(rollup_writer.run())
            tasks.create_task(loop.run())


def main() -> int:
    """Runs the service; returns the exit code."""
    settings = load_settings(TelemetrySettings)
    return run_service(SERVICE, settings, lambda: serve(settings))
