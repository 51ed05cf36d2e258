"""The scheduler's composition root: ``python -m evenkeel.services.scheduler``."""

import asyncio
import socket
import uuid

from evenkeel.numeric.compiled import Compiled
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.database import DATABASE_AWAY, create_engine
from evenkeel.services.common.health import Health, health_server, ready_file
from evenkeel.services.common.kafka import ConsumeLoop, DeadLetters, KafkaClientConfig, KafkaProducer
from evenkeel.services.common.kafka.assigned_consumer import AssignedConsumer
from evenkeel.services.common.kafka.pace import LoopConfig
from evenkeel.services.common.lifecycle import run_service
from evenkeel.services.common.metrics import KafkaMetrics, create_registry
from evenkeel.services.common.settings import load_settings
from evenkeel.services.common.steady_clock import SteadyClock
from evenkeel.services.common.worker import Worker
from evenkeel.services.scheduler.adapters.api.gate import Gate
from evenkeel.services.scheduler.adapters.api.server import FleetServer, TlsFiles, fleet_server
from evenkeel.services.scheduler.adapters.findings import DECODERS
from evenkeel.services.scheduler.adapters.intake import Intake
from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.scheduler.adapters.planner_process import PlannerProcess
from evenkeel.services.scheduler.adapters.ranks.tls import RankTls
from evenkeel.services.scheduler.adapters.store.lease import Lease
from evenkeel.services.scheduler.adapters.store.outbox import OutboxPublisher
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.plans.decision import DecisionRule
from evenkeel.services.scheduler.serving.coordinator import Coordinator
from evenkeel.services.scheduler.serving.parts import Parts
from evenkeel.services.scheduler.settings import SchedulerSettings

SERVICE = "scheduler"
GROUP = "evenkeel-scheduler"
_WILDCARDS = ("0.0.0.0", "[::]", "")  # noqa: S104 - asked about, not bound


async def serve(settings: SchedulerSettings) -> None:
    """Run the service until cancelled: stand by, and be in charge once nobody else is.

    Waits for PostgreSQL and Kafka for as long as they are away.
    """
    registry, clock = create_registry(), SteadyClock()
    health = Health("postgres", "kafka", "partitions")
    holder = uuid.uuid4().hex[:12]
    engine = create_engine(settings.database_url.get_secret_value(), application_name=f"evenkeel-scheduler/{holder}")
    config = KafkaClientConfig.from_settings(settings, service=SERVICE)
    metrics = KafkaMetrics(registry)
    producer = KafkaProducer(config, metrics, on_change=health.witness("kafka", "producer"))
    postgres = Reachability("postgres", health.witness("postgres", "history"))
    gate = Gate()

    def stand_by(leader: str) -> None:
        gate.stand_by(leader)
        for part in ("kafka", "partitions"):
            health.report(part, ready=True, detail=f"stands by; in charge is the scheduler at {leader}")

    lease = Lease(engine, holder, reachability=postgres, on_leader=stand_by)
    store = Store(engine, reachability=postgres, fence=lease.fence)
    rank_tls = RankTls.from_settings(settings)
    planner = PlannerProcess(deadline_seconds=settings.plan_deadline_seconds)
    try:
        async with (
            health_server(health, registry, host=settings.metrics_host, port=settings.metrics_port) as metrics_port,
            asyncio.TaskGroup() as group,
        ):
            coordinator = Coordinator(
                Parts(
                    store=store,
                    metrics=SchedulerMetrics(registry),
                    planner=planner,
                    spawn=group.create_task,
                    rule=DecisionRule(horizon_seconds=settings.plan_horizon_seconds, min_gain=settings.plan_min_gain),
                    transition=TransitionCosts(
                        group_seconds=settings.plan_group_seconds, bytes_per_second=settings.plan_bytes_per_second
                    ),
                    start_deadline_seconds=settings.start_deadline_seconds,
                    leadership=lease,
                    rank_tls=rank_tls,
                    clock=clock,
                ),
                lambda job_id, job_token: JobEvents(producer, job_id, job_token, clock=clock),
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
                    gate=gate,
                    term=lambda: lease.term,
                ) as fleet,
                ready_file(settings.ready_file, metrics_port=metrics_port, grpc_port=fleet.port),
            ):
                group.create_task(planner.run())
                await lease.acquire(_address_of(settings, fleet.port))
                group.create_task(lease.keep())
                health.report("partitions", ready=False, detail="loads the history")
                await persist(coordinator.load, transient=DATABASE_AWAY, reachability=postgres)
                gate.open()
                group.create_task(_say_whether_serving(fleet, postgres))
                outbox = OutboxPublisher(
                    engine, producer, store.outbox_filled, reachability=postgres, fence=lease.fence
                )
                group.create_task(outbox.run())
                await producer.start()
                dead_letters = DeadLetters(producer, metrics, group=GROUP)
                loop = ConsumeLoop(
                    AssignedConsumer(
                        config, topics=list(DECODERS), offsets=store, on_change=health.witness("kafka", "consumer")
                    ),
                    Intake(coordinator, bury=dead_letters.bury),
                    decoders=DECODERS,
                    dead_letters=dead_letters,
                    metrics=metrics,
                    worker=Worker(),
                    # A verdict should not wait for a commit interval after a restart, nor a tick for the next poll.
                    config=LoopConfig(checkpoint_seconds=0.2),
                    clock=clock,
                    on_assigned=lambda partitions: health.report(
                        "partitions", ready=True, detail=f"{len(partitions)} partitions"
                    ),
                )
                await loop.run()
    finally:
        await producer.stop()
        await lease.give_up()
        await engine.dispose()


def _address_of(settings: SchedulerSettings, port: int) -> str:
    """Where others find this process's fleet API."""
    host = settings.fleet_address.rpartition(":")[0]
    return f"{socket.gethostname() if host in _WILDCARDS else host}:{port}"


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
    # What it predicts itself is little: numba would take it a second of CPU and a hundred megabytes.
    Compiled.interpret()
    return run_service(SERVICE, settings, lambda: serve(settings))
