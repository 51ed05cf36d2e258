"""The scheduler's composition root: ``python -m evenkeel.services.scheduler``."""

import asyncio

import structlog

from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.warm_up import warm_up
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.database import DATABASE_AWAY, create_engine, wait_for_database
from evenkeel.services.common.health import Health, health_server, ready_file
from evenkeel.services.common.kafka import ConsumeLoop, DeadLetters, KafkaClientConfig, KafkaConsumer, KafkaProducer
from evenkeel.services.common.kafka.loop import LoopConfig
from evenkeel.services.common.lifecycle import run_service
from evenkeel.services.common.metrics import KafkaMetrics, create_registry
from evenkeel.services.common.settings import load_settings
from evenkeel.services.common.steady_clock import SteadyClock
from evenkeel.services.scheduler.adapters.findings import DECODERS
from evenkeel.services.scheduler.adapters.fleet_api_server import FleetServer, TlsFiles, fleet_server
from evenkeel.services.scheduler.adapters.intake import Intake
from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.scheduler.adapters.rank_tls import RankTls
from evenkeel.services.scheduler.adapters.sole import SoleScheduler
from evenkeel.services.scheduler.adapters.store import Store
from evenkeel.services.scheduler.adapters.store_outbox import OutboxPublisher
from evenkeel.services.scheduler.coordinator import Coordinator
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.parts import Parts
from evenkeel.services.scheduler.plans.decision import DecisionRule
from evenkeel.services.scheduler.settings import SchedulerSettings

_log = structlog.get_logger(__name__)

SERVICE = "scheduler"
GROUP = "evenkeel-scheduler"


async def serve(settings: SchedulerSettings) -> None:
    """Run the service until cancelled; waits for PostgreSQL and Kafka for as long as they are away."""
    registry, clock = create_registry(), SteadyClock()
    health = Health("postgres", "kafka", "partitions")
    engine = create_engine(settings.database_url.get_secret_value(), application_name="evenkeel-scheduler")
    config = KafkaClientConfig.from_settings(settings, service=SERVICE)
    metrics = KafkaMetrics(registry)
    producer = KafkaProducer(config, metrics, on_change=health.witness("kafka", "producer"))
    postgres = Reachability("postgres", health.witness("postgres", "history"))
    sole = SoleScheduler(engine, reachability=postgres)
    try:
        async with (
            health_server(health, registry, host=settings.metrics_host, port=settings.metrics_port) as metrics_port,
            asyncio.TaskGroup() as group,
        ):
            warming = group.create_task(asyncio.to_thread(warm_up))
            await wait_for_database(engine, postgres)
            await sole.acquire()
            group.create_task(sole.keep())
            store = Store(engine, reachability=postgres)
            rank_tls = RankTls.from_settings(settings)
            coordinator = Coordinator(
                Parts(
                    store=store,
                    metrics=SchedulerMetrics(registry),
                    spawn=group.create_task,
                    rule=DecisionRule(horizon_seconds=settings.plan_horizon_seconds, min_gain=settings.plan_min_gain),
                    transition=TransitionCosts(
                        group_seconds=settings.plan_group_seconds, bytes_per_second=settings.plan_bytes_per_second
                    ),
                    rank_tls=rank_tls,
                    clock=clock,
                ),
                lambda job_id: JobEvents(producer, job_id, clock=clock),
            )
            _log.info("the planner is warm", seconds=round(await warming, 3))
            await persist(coordinator.load, transient=DATABASE_AWAY, reachability=postgres)
            outbox = OutboxPublisher(engine, producer, store.outbox_filled, reachability=postgres)
            group.create_task(outbox.run())
            dead_letters = DeadLetters(producer, metrics, group=GROUP)
            loop = ConsumeLoop(
                KafkaConsumer(
                    config, topics=list(DECODERS), group=GROUP, on_change=health.witness("kafka", "consumer")
                ),
                Intake(coordinator, bury=dead_letters.bury, clock=clock),
                decoders=DECODERS,
                dead_letters=dead_letters,
                metrics=metrics,
                # A verdict should not wait for a commit interval after a restart, nor a tick for the next poll.
                config=LoopConfig(checkpoint_seconds=0.2),
                clock=clock,
                on_assigned=lambda partitions: health.report(
                    "partitions", ready=True, detail=f"{len(partitions)} partitions"
                ),
            )
            async with (
                fleet_server(
                    coordinator,
                    store,
                    registry,
                    address=settings.fleet_address,
                    fleet_token=settings.fleet_token.get_secret_value(),
                    tls=_tls(settings),
                    rank_tls=rank_tls,
                ) as fleet,
                ready_file(settings.ready_file, metrics_port=metrics_port, grpc_port=fleet.port),
            ):
                group.create_task(_say_whether_serving(fleet, postgres))
                await producer.start()
                await loop.run()
    finally:
        await producer.stop()
        await sole.close()
        await engine.dispose()


async def _say_whether_serving(fleet: FleetServer, postgres: Reachability) -> None:
    """What gRPC's health service answers: without its history the fleet API can promise nothing."""
    async for reachable in postgres.follow():
        await fleet.set_serving(reachable)


def _tls(settings: SchedulerSettings) -> TlsFiles | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return TlsFiles(certificate=settings.tls_certificate, key=settings.tls_key)


def main() -> int:
    """Read the settings, run the service; the exit code."""
    settings = load_settings(SchedulerSettings)
    return run_service(SERVICE, settings, lambda: serve(settings))
