"""A scheduler process of the simulation: the real task of the job, and its ranks' processes as it knows them."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from evenkeel.history.records import JobRecord
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.domain.job_state import RankInfo
from evenkeel.services.scheduler.domain.profiles import JobProfile
from evenkeel.services.scheduler.domain.restart import resumed_job
from evenkeel.services.scheduler.domain.suspicion import ProbeOutcome
from evenkeel.services.scheduler.jobs.events import Began, ProfileTaken
from evenkeel.services.scheduler.jobs.job import Job
from evenkeel.services.scheduler.jobs.machine import registered_job, resumed
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.job_task import JobTask
from evenkeel.services.scheduler.serving.news import Newsroom
from evenkeel.services.scheduler.serving.parts import Parts
from evenkeel.services.scheduler.serving.served_job import last_known
from tests.simulation.calls import SimulatedCalls
from tests.simulation.ranks import SimulatedRank

if TYPE_CHECKING:
    from tests.simulation.world import World


class Scheduler:
    """One scheduler process; it begins with a job that has just registered, or with the history."""

    def __init__(self, world: "World", job: JobRecord | None) -> None:
        self.world = world
        self.task: JobTask | None = None
        self.processes = SimulatedProcesses(self)
        self._tasks: set[asyncio.Task[None]] = set()
        parts = Parts(
            store=world.history,  # type: ignore[arg-type]
            metrics=SchedulerMetrics(create_registry()),
            spawn=self.spawn,
            second_look_seconds=2.0,
            clock=lambda: world.now().timestamp(),
        )
        self.started = self.spawn(self._start(parts, job))

    async def _start(self, parts: Parts, job: JobRecord | None) -> None:
        from benchmarks.planning.small_jobs import WORKLOAD  # noqa: PLC0415 - compiles on import

        salt = f"{self.world.random.randrange(1 << 32):08x}"
        if job is not None:
            task, began = self._task_of(registered_job(job, salt), parts), Began()
        else:
            await asyncio.sleep(self.world.random.uniform(0.1, 0.5))
            record = await last_known(parts.store, "job", parts.now())
            assert record is not None
            found = resumed_job(record)
            task, began = self._task_of(resumed(found, salt), parts), Began(found)
        await task.take(began)
        profile = JobProfile(
            job_id="job",
            iteration=1,
            epoch=task.job.known.epoch,
            workload=WORKLOAD,
            iteration_seconds=0.1,
            throughputs={},
        )
        await task.take(ProfileTaken(profile))
        self.task = task

    def _task_of(self, job: Job, parts: Parts) -> JobTask:
        return JobTask(
            job,
            lambda *_: self.processes,  # type: ignore[arg-type,return-value]
            parts,
            Newsroom(),
            _Unheard(),
            failed=lambda _, doing, error: self.world.broken.append(f"fault: {doing} raised {error!r}"),
            end=lambda: None,
        )

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.world.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.world.broken.append(f"fault: the scheduler raised {task.exception()!r}")

    def watches(self, rank: SimulatedRank) -> bool:
        return (rank.rank, rank.incarnation) in self.processes.clients

    def die(self) -> None:
        """As kill -9: nothing of it runs any more, not even what would clean up."""
        for task in list(self._tasks):
            task.remove_done_callback(self._done)
            task.cancel()


class _Unheard:
    """Telemetry, which nobody reads here."""

    async def stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
        pass

    async def probed(self, outcome: ProbeOutcome) -> None:
        pass


class SimulatedProcesses:
    """Clients of a job's ranks; see :class:`~evenkeel.services.scheduler.serving.processes.Processes`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.board = StateBoard()
        self.clients: dict[tuple[int, int], SimulatedCalls] = {}
        self._scheduler = scheduler

    def follow(self, infos: Iterable[RankInfo]) -> None:
        wanted = {(info.rank, info.incarnation) for info in infos if info.address}
        self.clients = {key: calls for key, calls in self.clients.items() if key in wanted}
        for key in sorted(wanted - self.clients.keys()):
            self.clients[key] = SimulatedCalls(self._scheduler.world, key)
            rank = self._scheduler.world.ranks.get(key[0])
            if rank is not None and rank.incarnation == key[1]:
                self._scheduler.world.watched(rank, rank.acceptor.state)

    def calls(self, infos: Iterable[RankInfo]) -> Mapping[int, "SimulatedCalls"]:
        found = {info.rank: self.clients.get((info.rank, info.incarnation)) for info in infos}
        return {rank: calls for rank, calls in sorted(found.items()) if calls is not None}

    def evict(self, info: RankInfo, epoch: int) -> None:
        pass

    def close(self) -> None:
        self.clients.clear()
