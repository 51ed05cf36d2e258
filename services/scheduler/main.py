"""The scheduler's composition root: ``python -m evenkeel.services.scheduler``."""

import asyncio
import socket
import uuid

from evenkeel.history.errors import DeposedError
from evenkeel.numeric.compiled import Compiled
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.services.common.backoff import Reachability
from evenkeel.services.common.health import Health, health_server, ready_file
from evenkeel.services.common.kafka import ConsumeLoop, DeadLetters, KafkaClientConfig, KafkaProducer
from evenkeel.services.common.kafka.assigned_consumer import AssignedConsumer
from evenkeel.services.common.kafka.pace import LoopConfig
from evenkeel.services.common.lifecycle import run_service
from evenkeel.services.common.metrics import KafkaMetrics, create_registry
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.common.settings import load_settings
from evenkeel.services.common.steady_clock import SteadyClock
from evenkeel.services.common.worker import Worker
from evenkeel.services.scheduler.adapters.api.admission import Admission
from evenkeel.services.scheduler.adapters.api.server import FleetServer, fleet_server
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


class _Plumbing:
    """What the service stands on: its database and its place in it, Kafka, and what it says of itself."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.registry, self.clock = create_registry(), SteadyClock()
        self.health = Health("postgres", "kafka", "partitions")
        self.postgres = Reachability("postgres", self.health.witness("postgres", "history"))
        holder, url = uuid.uuid4().hex[:12], settings.database_url.get_secret_value()
        self.engine = create_engine(url, application_name=f"evenkeel-scheduler/{holder}")
        self.lease = Lease(self.engine, holder, reachability=self.postgres, on_leader=self._stand_by)
        self.store = Store(self.engine, reachability=self.postgres, fence=self.lease.fence)
        self.admission = Admission(settings.fleet_token.get_secret_value(), self.store)
        self.kafka = KafkaClientConfig.from_settings(settings, service=SERVICE)
        self.kafka_metrics = KafkaMetrics(self.registry)
        on_change = self.health.witness("kafka", "producer")
        self.producer = KafkaProducer(self.kafka, self.kafka_metrics, on_change=on_change)

    def _stand_by(self, leader: str) -> None:
        self.admission.stand_by(leader)
        for part in ("kafka", "partitions"):
            self.health.report(part, ready=True, detail=f"stands by; in charge is the scheduler at {leader}")

    async def close(self) -> None:
        await self.producer.stop()
        await self.lease.give_up()
        await self.engine.dispose()


async def serve(settings: SchedulerSettings) -> None:
    """Run the service until cancelled: stand by, and be in charge once nobody else is.

    Waits for PostgreSQL and Kafka for as long as they are away.
    """
    plumbing, rank_tls = _Plumbing(settings), RankTls.from_settings(settings)
    planner = PlannerProcess(deadline_seconds=settings.plan_deadline_seconds)
    health, registry, host = plumbing.health, plumbing.registry, settings.metrics_host
    try:
        async with (
            health_server(health, registry, host=host, port=settings.metrics_port) as metrics_port,
            asyncio.TaskGroup() as group,
        ):
            coordinator = _coordinator(settings, plumbing, planner, group, rank_tls)
            async with (
                fleet_server(
                    coordinator,
                    plumbing.store,
                    registry,
                    plumbing.admission,
                    address=settings.fleet_address,
                    credentials=settings.credentials(),
                    rank_tls=rank_tls,
                ) as fleet,
                ready_file(settings.ready_file, metrics_port=metrics_port, grpc_port=fleet.port),
            ):
                group.create_task(planner.run())
                await plumbing.lease.acquire(_address_of(settings, fleet.port))
                group.create_task(plumbing.lease.keep())
                await _lead(plumbing, coordinator, group, fleet)
    finally:
        await plumbing.close()


def _coordinator(
    settings: SchedulerSettings,
    plumbing: _Plumbing,
    planner: PlannerProcess,
    group: asyncio.TaskGroup,
    rank_tls: RankTls | None,
) -> Coordinator:
    return Coordinator(
        Parts(
            store=plumbing.store,
            metrics=SchedulerMetrics(plumbing.registry),
            planner=planner,
            spawn=group.create_task,
            rule=DecisionRule(horizon_seconds=settings.plan_horizon_seconds, min_gain=settings.plan_min_gain),
            transition=TransitionCosts(
                group_seconds=settings.plan_group_seconds, bytes_per_second=settings.plan_bytes_per_second
            ),
            start_deadline_seconds=settings.start_deadline_seconds,
            leadership=plumbing.lease,
            rank_tls=rank_tls,
            reports=lambda job_id, token: JobEvents(plumbing.producer, job_id, token, clock=plumbing.clock),
            clock=plumbing.clock,
        )
    )


async def _lead(plumbing: _Plumbing, coordinator: Coordinator, group: asyncio.TaskGroup, fleet: FleetServer) -> None:
    """Be in charge: take the jobs up, let calls in, and read what the detector says."""
    health, store = plumbing.health, plumbing.store
    health.report("partitions", ready=False, detail="loads the history")
    await store.patiently(coordinator.load)
    plumbing.admission.open()
    group.create_task(_say_whether_serving(fleet, plumbing.postgres))
    group.create_task(OutboxPublisher(store, plumbing.producer).run())
    await plumbing.producer.start()
    dead_letters = DeadLetters(plumbing.producer, plumbing.kafka_metrics, group=GROUP)
    on_change = health.witness("kafka", "consumer")
    loop = ConsumeLoop(
        AssignedConsumer(plumbing.kafka, topics=list(DECODERS), offsets=store, on_change=on_change),
        Intake(coordinator, bury=dead_letters.bury),
        decoders=DECODERS,
        dead_letters=dead_letters,
        metrics=plumbing.kafka_metrics,
        worker=Worker(),
        # A verdict should not wait for a commit interval after a restart, nor a tick for the next poll.
        config=LoopConfig(checkpoint_seconds=0.2),
        clock=plumbing.clock,
        on_assigned=lambda partitions: health.report("partitions", ready=True, detail=f"{len(partitions)} partitions"),
    )
    await loop.run()


def _address_of(settings: SchedulerSettings, port: int) -> str:
    """Where others find this process's fleet API."""
    host = settings.fleet_address.rpartition(":")[0]
    return f"{socket.gethostname() if host in _WILDCARDS else host}:{port}"


async def _say_whether_serving(fleet: FleetServer, postgres: Reachability) -> None:
    """What gRPC's health service answers: without its history the fleet API can promise nothing."""
    async for reachable in postgres.follow():
        await fleet.set_serving(reachable)


def main() -> int:
    """Read the settings, run the service; the exit code."""
    settings = load_settings(SchedulerSettings)
    # What it predicts itself is little: numba would take it a second of CPU and a hundred megabytes.
    Compiled.interpret()
    return run_service(SERVICE, settings, lambda: serve(settings), foreseen=(DeposedError,))
