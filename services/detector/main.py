"""The detector's composition root: ``python -m evenkeel.services.detector``."""

import asyncio
from importlib import import_module

from evenkeel.contracts.topics import FRAMES
from evenkeel.services.common.backoff import Reachability
from evenkeel.services.common.health import Health, health_server, ready_file
from evenkeel.services.common.kafka import ConsumeLoop, DeadLetters, KafkaClientConfig, KafkaConsumer, KafkaProducer
from evenkeel.services.common.lifecycle import run_service
from evenkeel.services.common.metrics import KafkaMetrics, create_registry
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.common.settings import load_settings
from evenkeel.services.common.worker import Worker
from evenkeel.services.detector.adapters.handler import DetectorHandler
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.adapters.snapshot_store import SnapshotStore
from evenkeel.services.detector.metrics import DetectorMetrics
from evenkeel.services.detector.settings import DetectorSettings

SERVICE = "detector"


async def serve(settings: DetectorSettings) -> None:
    """Runs the detector until it is cancelled."""
    registry = create_registry()
    kafka_metrics = KafkaMetrics(registry)
    health = Health("kafka", "assignment", "postgres")

    config = KafkaClientConfig.from_settings(settings, service=SERVICE)
    engine = create_engine(settings.database_url.get_secret_value(), application_name="evenkeel-detector")
    producer = KafkaProducer(config, kafka_metrics, on_change=health.witness("kafka", "producer"))
    store = SnapshotStore(
        engine,
        group=settings.detector_group,
        reachability=Reachability("postgres", health.witness("postgres", "snapshots")),
    )
    worker = Worker()
    handler = DetectorHandler(
        producer,
        store,
        DetectorMetrics(registry),
        worker,
        iterations_per_false_alarm=settings.detector_iterations_per_false_alarm,
        snapshot_seconds=settings.detector_snapshot_seconds,
    )
    loop = ConsumeLoop(
        KafkaConsumer(
            config,
            topics=[FRAMES.name],
            group=settings.detector_group,
            on_change=health.witness("kafka", "consumer"),
        ),
        handler,
        decoders={FRAMES.name: decode_observations},
        dead_letters=DeadLetters(producer, kafka_metrics, group=settings.detector_group),
        metrics=kafka_metrics,
        worker=worker,
        on_assigned=lambda partitions: health.report("assignment", ready=True, detail=f"{len(partitions)} partitions"),
    )
    async with (
        health_server(health, registry, host=settings.metrics_host, port=settings.metrics_port) as port,
        ready_file(settings.ready_file, metrics_port=port),
    ):
        try:
            # Before partitions are assigned: what the first frames of a job ask for takes a while to load.
            await asyncio.gather(asyncio.to_thread(import_module, "scipy.special"), producer.start())
            await loop.run()
        finally:
            await producer.stop()
            await engine.dispose()


def main() -> int:
    """Reads the settings and runs the service; returns the exit code."""
    settings = load_settings(DetectorSettings)
    return run_service(SERVICE, settings, lambda: serve(settings))
