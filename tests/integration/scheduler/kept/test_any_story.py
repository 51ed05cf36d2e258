"""Whatever happens to a job, and whenever: once all is well again it runs in its full shape, and no step is missing."""

import asyncio
import contextlib
import random
import time

import grpc
import pytest

from evenkeel.history.records import VerdictRecord
from evenkeel.history.vocabulary import JobState, VerdictKind
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.plans.outlook import FLIP_MEMORY_SECONDS
from tests.integration.scheduler.conftest import World
from tests.integration.scheduler.toy_job import ToyRank

pytestmark = pytest.mark.integration

_NUM_EVENTS = 30
_NUM_TOLD_TWICE = 3
_PATIENCES_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 5.0)


class Story:
    """Random faults, returns, crashes of the scheduler and calls that are given up; verdicts come when Kafka may."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.later_seconds = 0.0
        self.told: list[VerdictRecord] = []
        self.untold: list[VerdictRecord] = []
        self.slow: set[int] = set()
        self.gone: set[int] = set()
        self.calls: set[asyncio.Task[None]] = set()
        self.happened: list[str] = []

    async def start(self) -> None:
        await self.world.restart(second_look_seconds=0.1, clock=lambda: time.time() + self.later_seconds)

    async def go_on(self) -> None:
        """Something happens, if it can."""
        happening = self.random.choice([self.lose, self.slow_down, self.recover, self.bring_back, self.crash])
        rank = self.random.randrange(len(self.world.toys.ranks))
        if await happening(rank):
            self.happened.append(f"{happening.__name__} {rank}")
            await self._pause()
        if self.random.random() < 0.7:
            await self._tell()
            await self._pause()

    async def end_well(self) -> None:
        """Everybody comes back, nobody is slow, and it has been so for long."""
        for rank in range(len(self.world.toys.ranks)):
            await self.recover(rank)
            await self.bring_back(rank)
        await self._tell()
        self.later_seconds += FLIP_MEMORY_SECONDS
        world, so_far = self.world, f"after {self.happened}"
        await world.until(self._is_whole, f"the full shape {so_far}")
        await world.until_epoch(world.job.epoch)
        await world.steps_are_gapless()
        open_incidents = [one for one in await world.incidents() if one.resolved_at is None]
        assert open_incidents == [], so_far

    def _is_whole(self) -> bool:
        job, toys = self.world.job, self.world.toys
        known = {rank: info.incarnation for rank, info in job.ranks.items() if info.alive and info.address}
        newest = {rank: toy.incarnation for rank, toy in toys.ranks.items()}
        return job.state is JobState.RUNNING and job.layout.replicas == toys.home.replicas and known == newest

    # ---- what may happen; each says whether it did

    async def lose(self, rank: int) -> bool:
        """One at a time: of two, each may be the last that holds something."""
        counted = set(self.world.job.layout.ranks)
        others = [toy for toy in self.world.toys.ranks.values() if toy.rank != rank]
        if self.gone or rank not in counted or not all(toy.rank in counted and toy.held for toy in others):
            return False
        toy, dies = self.world.toys.ranks[rank], self.random.random() < 0.6
        self.gone.add(rank)
        self.slow.discard(rank)
        if dies:
            toy.kill()
        else:
            toy.hanging.set()
        self._say(VerdictKind.FAIL_STOP if dies else VerdictKind.HANG, rank)
        return True

    async def slow_down(self, rank: int) -> bool:
        if rank in self.gone | self.slow:
            return False
        self.slow.add(rank)
        self._say(VerdictKind.COMPUTE_SLOW, rank, self.random.choice([0.3, 0.5, 0.8]))
        return True

    async def recover(self, rank: int) -> bool:
        if rank not in self.slow:
            return False
        self.slow.discard(rank)
        self._say(VerdictKind.RECOVERED, rank, 1.0)
        return True

    async def bring_back(self, rank: int) -> bool:
        if rank not in self.gone:
            return False
        self.gone.discard(rank)
        old = self.world.toys.ranks[rank]
        if not old.dead.is_set():
            old.kill()
        newer = self.world.toys.replace(rank)
        self._say(VerdictKind.REJOINED, rank)
        task = asyncio.create_task(self._register(newer))
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)
        return True

    async def crash(self, rank: int) -> bool:
        """kill -9 of the scheduler, perhaps while it hears verdicts; Kafka brings the last ones again."""
        telling = asyncio.create_task(self._tell())
        await self._pause()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        await self.start()
        self.untold = self.told[-_NUM_TOLD_TWICE:] + self.untold
        return True

    # ---- how it comes to the scheduler's ears

    def _say(self, kind: VerdictKind, rank: int, throughput: float = 0.0) -> None:
        incarnation = self.world.toys.ranks[rank].incarnation
        self.untold.append(self.world.verdict(kind, rank, incarnation=incarnation, throughput=throughput))

    async def _tell(self) -> None:
        telling = list(self.untold)
        if telling:
            await self.world.coordinator.tell(self.world.toys.job_id, events.VerdictsTaken((*telling,)))
            del self.untold[: len(telling)]
            self.told += telling

    async def _register(self, toy: ToyRank) -> None:
        """As an SDK does: again until it worked, whatever it may have done before its time was over."""
        while not toy.dead.is_set():
            with contextlib.suppress(TimeoutError, grpc.RpcError, asyncio.CancelledError):
                async with asyncio.timeout(self.random.choice(_PATIENCES_SECONDS)):
                    await self.world.register(toy)
                return
            await self._pause()

    async def _pause(self) -> None:
        """Waits for nothing: when the next thing happens is a part of the story."""
        await asyncio.sleep(self.random.random() ** 2 * 0.25)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(2))
async def test_a_job_to_which_anything_may_have_happened_ends_in_its_full_shape(world: World, seed: int) -> None:
    story = Story(world, seed)
    await story.start()
    for _ in range(_NUM_EVENTS):
        await story.go_on()
    await story.end_well()
