"""A scheduler process of the simulation: the real coordinator and lease over the simulated history and network."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history.errors import DeposedError
from evenkeel.services.common.backoff import Reachability
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.scheduler.adapters.store.lease import Lease
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.coordinator import Coordinator
from evenkeel.services.scheduler.serving.parts import Parts
from tests.planner_in_thread import PlannerInThread
from tests.simulation.history import FencedStore
from tests.simulation.virtual_loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


class Scheduler:
    """One process: it stands by, is in charge in its turn, and ends when somebody else is.

    Attributes:
        coordinator: All jobs, once it is in charge and knows them.
    """

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.process = Process(world.loop, world)
        self.coordinator: Coordinator | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.spawn(self._serve())

    async def _serve(self) -> None:
        world = self.world
        lease = Lease(
            world.leases,  # type: ignore[arg-type]
            self.name,
            reachability=Reachability("postgres"),
            clock=world.loop.time,
        )
        await lease.acquire(self.name)
        self.spawn(lease.keep())
        parts = Parts(
            store=FencedStore(world, lease),  # type: ignore[arg-type]
            metrics=SchedulerMetrics(create_registry()),
            planner=PlannerInThread(),
            spawn=self.spawn,
            reports=lambda job_id, token: _Reports(),
            second_look_seconds=2.0,
            clock=lambda: world.now().timestamp(),
            leadership=lease,
        )
        coordinator = Coordinator(parts)
        await coordinator.load()
        world.note(f"scheduler {self.name} is in charge")
        self.coordinator = coordinator
        world.serves(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.process.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, DeposedError):
            self.world.scheduler_ends(self, f"scheduler {self.name} is deposed")
        elif error is not None:
            self.world.broken.append(f"fault: scheduler {self.name} raised {error!r}")


class _Reports:
    """Telemetry hears of broken streams too, but the detector of the simulation knows without."""

    async def stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
        pass

    async def probed(self, asked: Suspicion, seconds: float, peer_seconds: float) -> None:
        pass
