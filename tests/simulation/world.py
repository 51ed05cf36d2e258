"""One job from a seed: ranks, network, history and scheduler on virtual time, faults, and what must always hold.

Real inside: the rank's acceptor and cycle, the copies rule, and of the scheduler the job's actor with its plans,
flights, agreement, restore, standstill and planner. The network, the history and the training are simulated.
"""

import asyncio
import random as global_random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from evenkeel.history.records import CulpritRecord, JobRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts import copies
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.scheduler.dispatch import protocol
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
from evenkeel.trainer_sdk.control import standing
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from tests.simulation.faults import Fault, Scenario
from tests.simulation.history import MemoryHistory
from tests.simulation.ranks import Meeting, SimulatedRank
from tests.simulation.virtual_loop import VirtualLoop

CALM_SECONDS = 20.0
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        broken: Which invariants were broken, with what was seen.
        num_steps: Steps of the job.
        num_plans: Plans that were made.
        trace: What happened, in order.
    """

    broken: list[str]
    num_steps: int
    num_plans: int
    trace: list[str] = field(repr=False)


class World:
    """See the module."""

    def __init__(self, scenario: Scenario, faults: Iterable[Fault], loop: VirtualLoop) -> None:
        from benchmarks.planning.small_jobs import gpt  # noqa: PLC0415 - compiles on import

        self.scenario, self.loop = scenario, loop
        self.random = Random(scenario.seed)
        shape = uniform_layout(
            num_blocks=scenario.pipeline * 2 + 2,
            tensor=scenario.tensor,
            pipeline=scenario.pipeline,
            data=scenario.data,
            num_micro_batches=scenario.data * scenario.pipeline * 2,
        )
        size = len(shape.ranks)
        self.home = replace(shape, standbys=tuple(range(size, size + scenario.standbys)))
        self.model = gpt(self.home.num_blocks - 2)
        self.broken: list[str] = []
        self.trace: list[str] = []
        self.ranks: dict[int, SimulatedRank] = {}
        self.meetings: dict[tuple[str, int, int], Meeting] = {}
        self.sent: set[tuple[int, int, int]] = set()
        self.voted: set[int] = set()
        self.newest_epoch = self.num_steps = 0
        self.cut_until: dict[int, float] = {}
        self._armed = [fault for fault in faults if fault.event]
        self._timed = [fault for fault in faults if not fault.event]
        self._counts: dict[str, int] = {}
        self._placed: dict[tuple[object, ...], tuple[copies.Placement, ...]] = {}
        record = JobRecord(
            job_id="job", name="job", model=self.model, layout=self.home, registered_at=_BEGAN, job_token="token"
        )
        self.history = MemoryHistory(record, self.random)
        self.scheduler: Scheduler | None = Scheduler(self, JobActorSource(new=record))
        self._last_disturbance = 0.0
        self._jobs: set[asyncio.Task[None]] = set()

    # ---- time and words

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.loop.call_later(seconds, do)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.now:8.3f} {text}")

    def disturbed(self, text: str) -> None:
        self.note(text)
        self._last_disturbance = self.loop.now

    def node_of(self, rank: int) -> str:
        return f"node-{rank // self.scenario.devices_per_node}"

    def placements_of(self, layout: Layout) -> tuple[copies.Placement, ...]:
        key = (layout.replicas,)
        if key not in self._placed:
            nodes = {rank: self.node_of(rank) for rank in layout.ranks}
            self._placed[key] = copies.place_copies(self.model, layout, nodes)
        return self._placed[key]

    # ---- what ranks tell the world

    def happened(self, event: str, rank: SimulatedRank | None = None) -> None:
        """A moment of the protocol: perhaps one that a fault waits for."""
        self._counts[event] = count = self._counts.get(event, 0) + 1
        for fault in [one for one in self._armed if (one.event, one.nth) == (event, count)]:
            self._armed.remove(fault)
            target = rank if rank is not None and fault.rank < 0 else self.ranks.get(max(fault.rank, 0))
            if fault.seconds:
                self.after(fault.seconds, lambda fault=fault, target=target: self.strike(fault, target))
            else:
                self.strike(fault, target)

    def is_expected(self, rank: int, what: str) -> bool:
        """Whether somebody who is not at a meeting may still come: it lives, and trains or may be told to move."""
        process = self.ranks.get(rank)
        return process is not None and process.alive and (what == "build" or process.cycle.phase is RankPhase.TRAINING)

    def missed(self, rank: SimulatedRank, key: tuple[str, int, int] | None) -> None:
        """A rank has left a meeting, or died: of those who wait for it there, some notice."""
        for number, process in self.ranks.items():
            waits = process.waits_for
            if not process.alive or waits is None or waits[0] == "plan" or number == rank.rank:
                continue
            meeting = self.meetings.get(waits)
            gone = meeting is not None and rank.rank in meeting.members and rank.rank not in meeting.brought
            if gone and self.random.random() < 0.6:
                process.later(0.1, process.lose_peers)

    def stepped(self, rank: SimulatedRank) -> None:
        epoch, step = rank.cycle.epoch, rank.cycle.steps_applied
        catches_up = rank.acceptor.state.phase is RankPhase.RESHAPING
        if not catches_up and epoch < self.newest_epoch:
            self.broken.append(f"one_epoch: rank {rank.rank} steps in {epoch} after a step in {self.newest_epoch}")
        self.newest_epoch = max(self.newest_epoch, epoch)
        self.num_steps = max(self.num_steps, step + 1)

    def entered(self, rank: SimulatedRank, epoch: int, steps: int) -> None:
        self.note(f"rank {rank.rank} trains in epoch {epoch} after {steps} steps")
        if steps < self.num_steps - 1:
            self.broken.append(f"samples_once: epoch {epoch} goes back to step {steps} from {self.num_steps}")

    def taken(self, rank: SimulatedRank, commit: Commit) -> None:
        self.note(f"rank {rank.rank} moves to epoch {commit.reshape.epoch} by {commit.reshape.mode}")
        self.happened("taken", rank)

    def watched(self, rank: SimulatedRank, state: RankState) -> None:
        if rank.cycle.phase is RankPhase.PARKED:
            self.note(f"rank {rank.rank} parks in epoch {state.epoch} at {state.steps_applied}, voted {state.voted}")

        def arrive() -> None:
            if self.scheduler is not None and self.scheduler.watches(rank):
                self.scheduler.processes.board.post(state)

        # A stream keeps its order, those of two processes do not; what is on its way outlives its sender.
        most = 0.02 if self.random.random() < 0.9 else 0.5
        rank.heard_at = max(rank.heard_at, self.loop.now + self.random.uniform(0.001, most))
        self.after(rank.heard_at - self.loop.now, arrive)

    # ---- faults

    def strike(self, fault: Fault, target: SimulatedRank | None = None) -> None:
        target = target or self.ranks.get(fault.rank)
        if fault.kind == "crash":
            self.crash_scheduler()
        elif fault.kind == "cut" and target is not None:
            self.disturbed(f"rank {target.rank} is cut off from the scheduler")
            self.cut_until[target.rank] = self.loop.now + 2.0
        elif fault.kind == "slow store":
            self.disturbed("the history is slow")
            self.history.delay_seconds = 0.5
            self.after(3.0, lambda: setattr(self.history, "delay_seconds", 0.01))
        elif fault.kind == "slow rank" and target is not None:
            self.disturbed(f"rank {target.rank} is slow for 4 s")
            self.tell(VerdictKind.COMPUTE_SLOW, target, 0.1, 0.4)
            self.tell(VerdictKind.RECOVERED, target, 4.0, 1.0)
        elif fault.kind == "kill" and target is not None and target.alive:
            self.kill(target)

    def kill(self, rank: SimulatedRank) -> None:
        self.disturbed(f"rank {rank.rank}.{rank.incarnation} dies, {rank.acceptor.state.phase}")
        rank.alive = False
        self.missed(rank, rank.waits_for)
        self.tell(VerdictKind.FAIL_STOP, rank, self.random.uniform(0.05, 1.0), 0.0)
        self.after(self.random.uniform(0.05, 3.0), lambda: self.replace(rank))

    def replace(self, dead: SimulatedRank) -> None:
        rank = SimulatedRank(self, dead.rank, dead.incarnation + 1)
        self.disturbed(f"rank {rank.rank}.{rank.incarnation} is there")
        self.ranks[rank.rank] = rank
        rank.start(None)
        self.register(rank)
        self.tell(VerdictKind.REJOINED, rank, self.random.uniform(0.02, 0.5), 1.0)
        self.happened("joined", rank)

    def crash_scheduler(self) -> None:
        if self.scheduler is None:
            return
        self.disturbed("the scheduler dies")
        self.scheduler.die()
        self.scheduler = None
        self.after(self.random.uniform(0.5, 2.0), self.restart_scheduler)

    def restart_scheduler(self) -> None:
        self.disturbed("a scheduler starts")
        self.scheduler = Scheduler(self, JobActorSource(new=None))

    # ---- what reaches the scheduler, again and again until it has taken it

    def register(self, rank: SimulatedRank) -> None:
        record = RankRecord(
            job_id="job",
            rank=rank.rank,
            incarnation=rank.incarnation,
            node=self.node_of(rank.rank),
            device=f"gpu-{rank.rank}",
            address=f"{rank.rank}.{rank.incarnation}:1",
            process_id=1,
            registered_at=self.now(),
        )
        self._until_taken(lambda actor: actor.take_rank(record), 0.02, lambda: rank.alive)

    def tell(self, kind: VerdictKind, rank: SimulatedRank, seconds: float, throughput: float) -> None:
        culprit = CulpritRecord(
            rank=rank.rank, incarnation=rank.incarnation, node=self.node_of(rank.rank), device=f"gpu-{rank.rank}"
        )

        def verdict() -> VerdictRecord:
            return VerdictRecord(
                verdict_id=f"{kind}-{rank.rank}-{rank.incarnation}-{seconds}",
                job_id="job",
                kind=kind,
                culprits=(culprit,),
                throughput=throughput,
                throughput_margin=0.02,
                confidence=0.99,
                first_iteration=1,
                decided_iteration=1,
                decided_at=self.now(),
            )

        self._until_taken(lambda actor: actor.take_verdicts([verdict()]), seconds, lambda: True)

    def now(self) -> datetime:
        return datetime.fromtimestamp(_BEGAN.timestamp() + self.loop.now, UTC)

    def _until_taken(
        self, take: Callable[[JobActor], Coroutine[Any, Any, None]], seconds: float, wanted: Callable[[], bool]
    ) -> None:
        async def work() -> None:
            await asyncio.sleep(seconds)
            while wanted():
                scheduler = self.scheduler
                if scheduler is not None and scheduler.actor is not None:
                    task = scheduler.spawn(take(scheduler.actor))
                    await asyncio.wait([task])
                    if not task.cancelled():
                        return
                await asyncio.sleep(0.1)

        self._jobs.add(job := self.loop.create_task(work()))
        job.add_done_callback(self._jobs.discard)

    # ---- a run

    async def run(self) -> Outcome:
        assert self.scheduler is not None
        await self.scheduler.started
        for number in (*self.home.ranks, *self.home.standbys):
            self.ranks[number] = SimulatedRank(self, number, 0)
        for rank in self.ranks.values():
            self.register(rank)
        for rank in self.ranks.values():
            rank.start(self.home if rank.rank in self.home.ranks else None)
        for fault in self._timed:
            self.after(fault.seconds, lambda fault=fault: self.strike(fault))
        last = max([5.0, *(fault.seconds for fault in self._timed)])
        while self.loop.now < max(last, self._last_disturbance) + CALM_SECONDS and not self.broken:
            await asyncio.sleep(0.5)
            if self._armed and self.loop.now > last + 5.0:
                self._armed.clear()
        if not self.broken:
            self._check_calm()
        broken = [*self.broken, *self.history.broken]
        return Outcome(broken, self.num_steps, len(self.history.plans), self.trace)

    def _check_calm(self) -> None:
        """20 s after the last disturbance everybody trains, in one epoch, and owes nothing."""
        assert self.scheduler is not None
        assert self.scheduler.actor is not None
        job = self.scheduler.actor.job
        for number, rank in self.ranks.items():
            state = rank.acceptor.state
            if state.pending_epoch:
                self.broken.append(f"no_debt: rank {number} has epoch {state.pending_epoch} pending: {state}")
            is_idle = number not in job.layout.ranks and state.phase in (RankPhase.JOINING, RankPhase.PARKED)
            if not is_idle and (state.phase is not RankPhase.TRAINING or state.epoch != job.epoch):
                self.broken.append(
                    f"nobody_idle: rank {number} is {state.phase} in {state.epoch}, the job in {job.epoch}"
                )
        if len(job.layout.ranks) < len(self.home.ranks):
            self.broken.append(f"nobody_idle: {len(job.layout.ranks)} of {len(self.home.ranks)} ranks are in use")
        if job.stuck:
            self.broken.append(f"ends: stuck, {job.stuck}")


@dataclass
class JobActorSource:
    """What a scheduler starts from: a job that has just registered, or the history."""

    new: JobRecord | None


class Scheduler:
    """One scheduler process: the real actor of the job, with simulated calls and history."""

    def __init__(self, world: World, source: JobActorSource) -> None:
        self.world = world
        self.actor: JobActor | None = None
        self.processes = SimulatedProcesses(self)
        self._tasks: set[asyncio.Task[None]] = set()
        parts = Parts(
            store=world.history,  # type: ignore[arg-type]
            metrics=SchedulerMetrics(create_registry()),
            spawn=self.spawn,
            second_look_seconds=2.0,
            clock=lambda: _BEGAN.timestamp() + world.loop.now,
        )
        self.started = self.spawn(self._start(parts, source))

    async def _start(self, parts: Parts, source: JobActorSource) -> None:
        from benchmarks.planning.small_jobs import WORKLOAD  # noqa: PLC0415 - compiles on import

        news = Newsroom()
        if source.new is not None:
            actor = JobActor(new_job(source.new), self.processes, parts, news)  # type: ignore[arg-type]
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


class SimulatedCalls:
    """Calls to one process over a network that delays and loses; see :class:`RankCalls`."""

    def __init__(self, world: World, key: tuple[int, int]) -> None:
        self._world, self._key = world, key

    async def prepare(self, reshape: protocol.Reshape, timeout_seconds: float) -> RankState:
        plan = _for_ranks(reshape)

        async def ask(rank: SimulatedRank) -> RankState:
            rank.acceptor.prepare(plan)
            rank.changed()
            self._world.happened("prepared", rank)
            while (answer := rank.acceptor.answer(plan)) is None:
                changed = asyncio.Event()
                rank.watchers.append(changed.set)
                try:
                    await changed.wait()
                finally:
                    rank.watchers.remove(changed.set)
            return answer

        return await self._call(ask, timeout_seconds)

    async def commit(self, reshape: protocol.Reshape, decision: protocol.Decision, timeout_seconds: float) -> RankState:
        commit = Commit(
            reshape=_for_ranks(reshape),
            from_epoch=decision.from_epoch,
            from_layout=decision.from_layout,
            sources=decision.sources,
            steps_applied=decision.steps_applied,
            stand_ins=decision.stand_ins,
            from_checkpoint=decision.from_checkpoint,
        )

        async def ask(rank: SimulatedRank) -> RankState:
            if not self._world.history.is_decided(reshape.plan_id):
                self._world.broken.append(f"decided_before_commit: {reshape.plan_id}")
            rank.acceptor.commit(commit)
            rank.changed()
            self._world.happened("committed", rank)
            return rank.acceptor.state

        return await self._call(ask, timeout_seconds)

    async def abort(self, reshape: protocol.Reshape, timeout_seconds: float) -> RankState:
        async def ask(rank: SimulatedRank) -> RankState:
            rank.acceptor.abort(reshape.plan_id, Ballot(reshape.term, reshape.epoch))
            rank.changed()
            return rank.acceptor.state

        return await self._call(ask, timeout_seconds)

    async def status(self, timeout_seconds: float) -> RankState:
        async def ask(rank: SimulatedRank) -> RankState:
            return rank.acceptor.state

        return await self._call(ask, timeout_seconds)

    async def _call(
        self, ask: Callable[[SimulatedRank], Coroutine[Any, Any, RankState]], timeout_seconds: float
    ) -> RankState:
        world, (number, incarnation) = self._world, self._key
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.sleep(world.random.uniform(0.0, 0.02))
                rank = world.ranks.get(number)
                if world.cut_until.get(number, 0.0) > world.loop.now:
                    await asyncio.sleep(timeout_seconds)
                if rank is None or rank.incarnation != incarnation or not rank.alive:
                    raise protocol.RankAwayError(f"rank {number}.{incarnation} is away")
                try:
                    state = await ask(rank)
                except standing.StaleBallotError as stale:
                    raise protocol.StaleBallotError(stale.promised, str(stale)) from stale
                except standing.FinishedError as finished:
                    raise protocol.RankRefusedError(str(finished)) from finished
                await asyncio.sleep(world.random.uniform(0.0, 0.02))
                if world.random.random() < world.scenario.answers_lost or not rank.alive:
                    await asyncio.sleep(timeout_seconds)
                return state
        except TimeoutError as error:
            raise protocol.RankTimeoutError(f"rank {number}.{incarnation}") from error


def _for_ranks(reshape: protocol.Reshape) -> Reshape:
    return Reshape(
        job_id=reshape.job_id,
        plan_id=reshape.plan_id,
        epoch=reshape.epoch,
        mode=ApplyMode(reshape.mode.value),
        to_layout=reshape.to_layout,
        term=reshape.term,
    )


def run(scenario: Scenario, faults: Iterable[Fault]) -> Outcome:
    """One world from beginning to end; the same arguments give the same outcome."""
    global_random.seed(scenario.seed)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    world = World(scenario, tuple(faults), loop)

    def failed(_: object, said: Mapping[str, Any]) -> None:
        world.broken.append(f"fault: {said.get('exception') or said['message']!r}")

    loop.set_exception_handler(failed)
    try:
        return loop.run_until_complete(world.run())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
