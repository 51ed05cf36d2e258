"""One job from a seed: ranks, network, history and scheduler on virtual time, faults, and what must always hold.

Real inside: the rank's acceptor and cycle, the copies rule, and of the scheduler the job machine and its task,
flights, agreement, restore and planner. The network, the history and the training are simulated.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

from evenkeel.history.records import CulpritRecord, JobRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts import copies
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.jobs.events import Event, RanksRegistered, VerdictsTaken
from evenkeel.trainer_sdk.control.state import Commit
from tests.simulation.faults import Fault, Outcome, Scenario
from tests.simulation.history import MemoryHistory
from tests.simulation.ranks import Meeting, SimulatedRank
from tests.simulation.scheduler import Scheduler
from tests.simulation.virtual_loop import VirtualLoop

CALM_SECONDS = 20.0
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


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
        self.scheduler: Scheduler | None = Scheduler(self, record)
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
        self.scheduler = Scheduler(self, None)

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
        self._until_taken(lambda: RanksRegistered((record,)), 0.02, lambda: rank.alive)

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

        self._until_taken(lambda: VerdictsTaken((verdict(),)), seconds, lambda: True)

    def now(self) -> datetime:
        return datetime.fromtimestamp(_BEGAN.timestamp() + self.loop.now, UTC)

    def _until_taken(self, event: Callable[[], Event], seconds: float, wanted: Callable[[], bool]) -> None:
        async def work() -> None:
            await asyncio.sleep(seconds)
            while wanted():
                scheduler = self.scheduler
                if scheduler is not None and scheduler.task is not None:
                    task = scheduler.spawn(scheduler.task.take(event()))
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
        assert self.scheduler.task is not None
        job = self.scheduler.task.job.known
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
