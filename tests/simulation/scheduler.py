"""A scheduler process of the simulation: the real actor of the job, and its ranks' processes as it knows them."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from evenkeel.history.records import JobRecord
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.domain.job_state import RankInfo
from evenkeel.services.scheduler.domain.profiles import JobProfile
from evenkeel.services.scheduler.domain.restart import new_job, resumed_job
from evenkeel.services.scheduler.job_actor import JobActor
from evenkeel.services.scheduler.last_known import last_known
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.news import Newsroom
from evenkeel.services.scheduler.parts import Parts
from evenkeel.services.scheduler.standstill import Standstill
from tests.simulation.calls import SimulatedCalls
from tests.simulation.ranks import SimulatedRank

if TYPE_CHECKING:
    from tests.simulation.world import World


class Scheduler:
    """One scheduler process; it begins with a job that has just registered, or with the history."""

    def __init__(self, world: "World", job: JobRecord | None) -> None:
        self.world = world
        self.actor: JobActor | None = None
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

        news = Newsroom()
        if job is not None:
            actor = JobActor(new_job(job), self.processes, parts, news)  # type: ignore[arg-type]
            Standstill(self.spawn).attend(actor, self.processes.board)
        else:
            await asyncio.sleep(self.world.random.uniform(0.1, 0.5))
            record = await last_known(parts.store, "job", parts.now())
            assert record is not None
            resumed = resumed_job(record)
            actor = JobActor(resumed.job, self.processes, parts, news)  # type: ignore[arg-type]
            Standstill(self.spawn).attend(actor, self.processes.board)
            await actor.resume(resumed)
        profile = JobProfile(
            job_id="job", iteration=1, epoch=actor.job.epoch, workload=WORKLOAD, iteration_seconds=0.1, throughputs={}
        )
        await actor.take_profile(profile)
        self.actor = actor

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
        return (rank.rank, rank.incarnation) in self.processes.known

    def die(self) -> None:
        """As kill -9: nothing of it runs any more, not even what would clean up."""
        for task in list(self._tasks):
            task.remove_done_callback(self._done)
            task.cancel()


class SimulatedProcesses:
    """Clients of a job's ranks; see :class:`~evenkeel.services.scheduler.processes.Processes`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.board = StateBoard()
        self.known: dict[tuple[int, int], SimulatedCalls] = {}
        self._scheduler = scheduler

    @property
    def clients(self) -> tuple["SimulatedCalls", ...]:
        return tuple(self.known.values())

    def add(self, info: RankInfo) -> None:
        key = info.rank, info.incarnation
        if info.address and key not in self.known:
            self.known[key] = SimulatedCalls(self._scheduler.world, key)
            rank = self._scheduler.world.ranks.get(info.rank)
            if rank is not None and rank.incarnation == info.incarnation:
                self._scheduler.world.watched(rank, rank.acceptor.state)

    def forget(self, key: tuple[int, int]) -> None:
        self.known.pop(key, None)

    def calls(self, infos: Iterable[RankInfo]) -> Mapping[int, "SimulatedCalls"]:
        found = {info.rank: self.known.get((info.rank, info.incarnation)) for info in infos}
        return {rank: calls for rank, calls in sorted(found.items()) if calls is not None}

    def drop(self, key: tuple[int, int], *, evict_in_epoch: int | None) -> None:
        self.forget(key)

    def evict(self, info: RankInfo, epoch: int) -> None:
        pass

    def close(self) -> None:
        self.known.clear()
