import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history import reads
from evenkeel.history.records import CulpritRecord, JobRecord, PlanStatus, RankRecord, StoredJob, VerdictRecord
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.dispatch.flight import FlightTimes
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.profiles import JobProfile
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.coordinator import Coordinator
from evenkeel.services.scheduler.serving.faults import JobAwayError
from evenkeel.services.scheduler.serving.news import JobView
from evenkeel.services.scheduler.serving.parts import Parts
from tests.integration.scheduler.toy_job import ToyJob, ToyRank
from tests.planner_in_thread import PlannerInThread

HOME = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=16)
DEADLINE_SECONDS = 200.0
PATIENT_SECONDS = 60.0
"""The database answers at once, or the machine has no time for it."""
# Ranks and scheduler share a process here: while that has no processor, nobody answers, and nobody is ill.
PATIENT = FlightTimes(boundary_prepare=60.0)


@dataclass
class Scheduler:
    """A coordinator with everything real but Kafka; ``crash`` ends it as kill -9 would.

    ``broken`` has the reports of broken streams; they go on when ``kafka`` is set.
    """

    store: Store
    registry: CollectorRegistry
    coordinator: Coordinator
    tasks: set[asyncio.Task[None]]
    kafka: asyncio.Event
    broken: list[tuple[int, int]] = field(default_factory=list)
    probes: list[tuple[Suspicion, float, float]] = field(default_factory=list)

    def num_failures(self, where: str) -> float:
        """How often the scheduler failed on a job."""
        return self.registry.get_sample_value("evenkeel_scheduler_failures_total", {"where": where}) or 0.0

    def is_ready(self, job_id: str) -> bool:
        """Whether anything about a job is taken in now; False for one that begins anew."""
        job = self.coordinator._jobs.get(job_id)
        return job is None or job.is_ready

    async def crash(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class World:
    """A toy job and its scheduler."""

    engine: AsyncEngine
    toys: ToyJob
    scheduler: Scheduler
    newest_profile: JobProfile | None = None

    @property
    def coordinator(self) -> Coordinator:
        return self.scheduler.coordinator

    @property
    def view(self) -> JobView:
        view = self.coordinator.job(self.toys.job_id)
        assert view is not None
        return view

    @property
    def job(self) -> JobKnowledge:
        return self.view.known

    async def register(self, toy: ToyRank) -> None:
        await self.coordinator.register_ranks(self.toys.job_id, [self.record_of(toy)])

    def record_of(self, toy: ToyRank) -> RankRecord:
        return RankRecord(
            job_id=self.toys.job_id,
            rank=toy.rank,
            incarnation=toy.incarnation,
            node=f"node-{toy.rank // 4}",
            device=f"gpu-{toy.rank % 4}",
            address=toy.server.address(),
            process_id=1000 + toy.rank,
            registered_at=datetime.now(UTC),
            can_reshape=self.toys.can_reshape,
        )

    async def say(self, kind: VerdictKind, rank: int, *, incarnation: int = 0, throughput: float = 0.0) -> None:
        """A verdict arrives."""
        verdict = self.verdict(kind, rank, incarnation=incarnation, throughput=throughput)
        await self.coordinator.tell(self.toys.job_id, events.VerdictsTaken((verdict,)))

    async def say_and_plan(self, kind: VerdictKind, rank: int, *, throughput: float = 0.0) -> None:
        """A verdict arrives; the planner has answered on return, and what follows is in the history."""
        await self.say(kind, rank, throughput=throughput)
        served = self.coordinator._jobs[self.toys.job_id]
        await self.until(lambda: served._life.job.question is None, "the planner")

    async def patiently(self, offer: Callable[[], Awaitable[None]]) -> None:
        """As Kafka and launchers do: what a job could not take in is offered again when it is back."""
        while True:
            await self.until(lambda: self.scheduler.is_ready(self.toys.job_id), "the job that failed")
            with contextlib.suppress(JobAwayError):
                await offer()
                return

    def verdict(self, kind: VerdictKind, rank: int, *, incarnation: int = 0, throughput: float = 0.0) -> VerdictRecord:
        return VerdictRecord(
            verdict_id=uuid.uuid4().hex,
            job_id=self.toys.job_id,
            kind=kind,
            culprits=(
                CulpritRecord(rank=rank, incarnation=incarnation, node=f"node-{rank // 4}", device=f"gpu-{rank % 4}"),
            ),
            throughput=throughput,
            throughput_margin=0.02,
            confidence=0.99,
            first_iteration=10,
            decided_iteration=12,
            decided_at=datetime.now(UTC),
        )

    async def profile(self, iteration: int, seconds: float) -> None:
        self.newest_profile = JobProfile(
            job_id=self.toys.job_id,
            iteration=iteration,
            epoch=self.job.epoch,
            workload=WORKLOAD,
            iteration_seconds=seconds,
            throughputs={},
        )
        await self.coordinator.tell(self.newest_profile.job_id, self.newest_profile)

    async def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Wait for a condition, looking often."""
        ends = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < ends, f"waited in vain for {what}; job {self.job}"
            await asyncio.sleep(0.005)

    async def until_epoch(self, epoch: int) -> None:
        """Wait until the scheduler has seen an epoch applied, and every rank of its layout goes on in it."""
        await self.until(lambda: self.job.epoch >= epoch, f"epoch {epoch}")
        steps = {rank: self.toys.ranks[rank].steps for rank in self.job.layout.ranks}
        await self.until(lambda: all(self.toys.ranks[r].steps > steps[r] + 1 for r in steps), "steps in the new epoch")

    async def plans(self) -> list[PlanStatus]:
        """The job's plans, oldest first."""
        page = await self.scheduler.store.read(reads.list_plans, job_id=self.toys.job_id, page_size=0, page_token="")
        return list(reversed(page.items))

    async def incidents(self) -> list[Any]:
        """The job's incidents, oldest first."""
        page = await self.scheduler.store.read(
            reads.list_incidents, job_id=self.toys.job_id, page_size=0, page_token=""
        )
        return list(reversed(page.items))

    async def in_history(self) -> StoredJob:
        """The job as a scheduler that starts finds it."""
        record = await self.scheduler.store.load_job(self.toys.job_id)
        assert record is not None
        return record

    async def restart(self, *, profiled: bool = True, **settings: Any) -> None:
        """kill -9 of the scheduler, and a new one; ``settings`` are those of its parts.

        It is given the newest profile again, as from the compacted topic, if ``profiled``.
        """
        await self.scheduler.crash()
        self.scheduler = new_scheduler(self.engine, **settings)
        await self.coordinator.load()
        if profiled and self.newest_profile is not None:
            await self.coordinator.tell(self.newest_profile.job_id, self.newest_profile)

    async def steps_are_gapless(self) -> None:
        """No rank did a step twice, or left one out in a layout that counted on it."""
        record = await self.in_history()
        for toy in self.toys.ranks.values():
            for (before, last), (epoch, step) in pairwise(toy.history):
                between = [record.layouts[each] for each in range(before + 1, epoch) if each in record.layouts]
                was_out = any(toy.rank not in layout.ranks for layout in between)
                where = f"rank {toy.rank}: step {last} in epoch {before}, then {step} in {epoch}"
                assert epoch >= before, where
                assert step == last + 1 or (was_out and step > last), where


def new_scheduler(engine: AsyncEngine, *, store: Store | None = None, **settings: Any) -> Scheduler:
    tasks: set[asyncio.Task[None]] = set()
    store = store or Store(engine, timeout_seconds=PATIENT_SECONDS)

    def spawn(work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    kafka = asyncio.Event()
    kafka.set()
    broken: list[tuple[int, int]] = []
    probes: list[tuple[Suspicion, float, float]] = []

    class Reports:
        async def stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
            broken.append((rank, incarnation))
            await kafka.wait()

        async def probed(self, asked: Suspicion, seconds: float, peer_seconds: float) -> None:
            probes.append((asked, seconds, peer_seconds))

    settings = {"times": PATIENT, "planner": PlannerInThread(), **settings}
    registry = create_registry()
    metrics = SchedulerMetrics(registry)
    parts = Parts(store=store, metrics=metrics, spawn=spawn, reports=lambda *_: Reports(), **settings)
    return Scheduler(
        store=store,
        registry=registry,
        coordinator=Coordinator(parts),
        tasks=tasks,
        kafka=kafka,
        broken=broken,
        probes=probes,
    )


@pytest.fixture
def home() -> Layout:
    return HOME


@pytest.fixture
def can_reshape() -> bool:
    """Whether the toys' training loop applies plans."""
    return True


@pytest.fixture
def late_ranks() -> tuple[int, ...]:
    """Ranks whose processes have not registered yet."""
    return ()


@pytest.fixture
def toys(home: Layout, can_reshape: bool) -> Iterator[ToyJob]:
    job = ToyJob(f"toy-{uuid.uuid4().hex[:8]}", home, can_reshape=can_reshape)
    job.start()
    yield job
    job.stop()


def job_record(toys: ToyJob) -> JobRecord:
    return JobRecord(
        job_id=toys.job_id,
        name="toy",
        model=gpt(toys.home.num_blocks - 2),
        layout=toys.home,
        registered_at=datetime.now(UTC),
        job_token=toys.token,
    )


def patient_engine(database_url: str) -> AsyncEngine:
    return create_engine(
        database_url,
        application_name="test",
        connect_timeout_seconds=int(PATIENT_SECONDS),
        statement_timeout_seconds=PATIENT_SECONDS,
    )


@pytest_asyncio.fixture
async def world(fresh_database_url: str, toys: ToyJob, late_ranks: tuple[int, ...]) -> AsyncIterator[World]:
    engine = patient_engine(fresh_database_url)
    world = World(engine=engine, toys=toys, scheduler=new_scheduler(engine))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        await world.coordinator.register_job(job_record(toys))
        for toy in toys.ranks.values():
            if toy.rank not in late_ranks:
                await world.register(toy)
        await world.profile(5, 1.7)
        yield world
        await world.scheduler.crash()
