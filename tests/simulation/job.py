"""One job of the simulation: its ranks, what the detector says of them, and what must always hold of its training."""

from dataclasses import replace
from typing import TYPE_CHECKING

from evenkeel.contracts.verdict_ids import verdict_id
from evenkeel.history.records import CulpritRecord, JobRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import PlanState, VerdictKind
from evenkeel.layouts import copies
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.services.scheduler.adapters.store.job_document import restored_job
from evenkeel.services.scheduler.domain.profiles import JobProfile
from evenkeel.services.scheduler.domain.stuck import StuckReason
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.serving.coordinator import Coordinator
from evenkeel.services.scheduler.serving.news import JobView
from evenkeel.trainer_sdk.control.state import Commit
from evenkeel.trainer_sdk.replicas.membership.roster import Entry
from tests.simulation.faults import Shape
from tests.simulation.history import ENDS
from tests.simulation.ranks import Meeting, SimulatedRank
from tests.simulation.replicas import SimulatedReplica

if TYPE_CHECKING:
    from tests.simulation.world import World

_MOST_SURVIVED = 2
"""Ranks that may die before the next round of copies is complete."""
_UNCUT = BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0)
_MOST_STEP_SECONDS = 2.0
_SAFE_STEPS = 3
"""After so many steps of an epoch its copies are complete."""


class SimulatedJob:
    """See the module.

    Attributes:
        ranks: The newest process of each rank.
        processes: Every process that there was, by (rank, incarnation).
    """

    def __init__(self, world: "World", job_id: str, shape: Shape) -> None:
        from benchmarks.planning.solver.small_jobs import gpt  # noqa: PLC0415 - compiles on import

        self.world, self.job_id, self.shape, self.random = world, job_id, shape, world.random
        home = uniform_layout(
            num_blocks=1 if shape.is_whole else shape.pipeline * 2 + 2,
            tensor=shape.tensor,
            pipeline=shape.pipeline,
            data=shape.data,
            num_micro_batches=shape.data * shape.pipeline * 2,
        )
        self.home = replace(home, standbys=tuple(range(len(home.ranks), shape.num_ranks)), whole=shape.is_whole)
        self.model = ModelSpec(blocks=(_UNCUT,)) if shape.is_whole else gpt(self.home.num_blocks - 2)
        self._process = SimulatedReplica if shape.is_whole else SimulatedRank
        self.log: list[Entry] = []
        self.ranks: dict[int, SimulatedRank] = {}
        self.processes: dict[tuple[int, int], SimulatedRank] = {}
        self.meetings: dict[tuple[str, int, int], Meeting] = {}
        self.sent: set[tuple[int, int, int]] = set()
        self.voted: set[int] = set()
        self.num_steps = 0
        self.cut_until: dict[tuple[int, int], float] = {}
        self._epoch_of_step: dict[int, int] = {}
        self._steps_in: dict[int, int] = {}
        self._entered: dict[int, set[int]] = {}
        self._died_lately: set[int] = set()
        self._most_survived = 0
        self._nothing_left = False
        self._stepped_at = 0.0
        self._placed: dict[tuple[object, ...], tuple[copies.Placement, ...]] = {}

    @property
    def record(self) -> JobRecord:
        began = self.world.began
        return JobRecord(
            job_id=self.job_id,
            name=self.job_id,
            model=self.model,
            layout=self.home,
            registered_at=began,
            job_token="token",
        )

    def start(self) -> None:
        for number in (*self.home.ranks, *self.home.standbys):
            self._add(self._process(self, number, 0))
        for rank in list(self.ranks.values()):
            rank.start(self.home if rank.rank in self.home.ranks else None)

    def _add(self, rank: SimulatedRank) -> None:
        self.ranks[rank.rank] = self.processes[rank.rank, rank.incarnation] = rank
        record = RankRecord(
            job_id=self.job_id,
            rank=rank.rank,
            incarnation=rank.incarnation,
            node=self.node_of(rank.rank),
            device=f"gpu-{rank.rank}",
            address=f"{rank.rank}.{rank.incarnation}:1",
            process_id=1,
            registered_at=self.world.now(),
        )
        self.world.until_taken(lambda fleet: fleet.register_ranks(self.job_id, [record]), 0.02, lambda: rank.alive)

    def node_of(self, rank: int) -> str:
        return f"node-{rank // self.shape.devices_per_node}"

    def placements_of(self, layout: Layout) -> tuple[copies.Placement, ...]:
        key = (layout.replicas,)
        if key not in self._placed:
            nodes = {rank: self.node_of(rank) for rank in layout.ranks}
            self._placed[key] = copies.place_copies(self.model, layout, nodes)
        return self._placed[key]

    def profile(self, epoch: int) -> JobProfile:
        from benchmarks.planning.solver.small_jobs import WORKLOAD  # noqa: PLC0415 - compiles on import

        seconds = self.shape.iteration_seconds
        return JobProfile(
            job_id=self.job_id, iteration=1, epoch=epoch, workload=WORKLOAD, iteration_seconds=seconds, throughputs={}
        )

    # ---- what ranks tell

    def happened(self, event: str, rank: SimulatedRank) -> None:
        self.world.happened(event, rank)

    def breaks(self, what: str) -> None:
        self.world.broken.append(f"{self.job_id}: {what}")

    def note(self, text: str) -> None:
        self.world.note(f"{self.job_id} {text}")

    def is_expected(self, rank: int, what: str) -> bool:
        """Whether somebody who is not at a meeting may still come: it lives, and trains or may be told to move."""
        process = self.ranks.get(rank)
        return process is not None and process.alive and (what == "build" or process.cycle.phase is RankPhase.TRAINING)

    def missed(self, rank: SimulatedRank, key: tuple[str, int, int] | None) -> None:
        """A rank has left a meeting, or died: of those who wait for it there, some notice."""
        for process in list(self.processes.values()):
            waits = process.waits_for
            if not process.alive or waits is None or waits[0] == "plan" or process is rank:
                continue
            meeting = self.meetings.get(waits)
            gone = meeting is not None and rank.rank in meeting.members and rank.rank not in meeting.brought
            if gone and self.random.random() < 0.6:
                process.later(0.1, process.lose_peers)

    def stepped(self, rank: SimulatedRank) -> None:
        """A step is one of the epoch in which it was applied last: nobody who counts applies it in an earlier one."""
        epoch, step = rank.cycle.epoch, rank.cycle.steps_applied
        if rank.is_given_up and step > self.num_steps:
            return  # the job has begun anew meanwhile
        catches_up = rank.acceptor.switching is not None and not self.home.whole
        newest = self._epoch_of_step.setdefault(step, epoch)
        if not catches_up and not rank.is_given_up and epoch < newest:
            self.breaks(f"one_epoch: rank {rank.rank} applies step {step} in {epoch} after others did in {newest}")
        if step > self.num_steps:
            self.breaks(f"samples_once: rank {rank.rank} applies step {step} in {epoch}, nobody did {self.num_steps}")
        if not rank.is_given_up and step < self.num_steps - 2:
            self.breaks(f"samples_once: rank {rank.rank} applies step {step} of {self.num_steps} again, in {epoch}")
        self._epoch_of_step[step] = max(newest, epoch)
        self._steps_in[epoch] = num_steps = self._steps_in.get(epoch, 0) + 1
        if rank.layout is not None and num_steps >= _SAFE_STEPS * len(rank.layout.ranks):
            self._died_lately.clear()
            self._most_survived = min(_MOST_SURVIVED, len(rank.layout.ranks) - 1)
        self.num_steps, self._stepped_at = max(self.num_steps, step + 1), self.world.loop.now

    def begins(self) -> None:
        """Replicas begin the job, perhaps anew."""
        if self.num_steps and not self._nothing_left:
            self.breaks(f"samples_once: the job begins anew after {self.num_steps} steps")
        self.num_steps = 0
        self._epoch_of_step.clear()

    def entered(self, rank: SimulatedRank, epoch: int, steps: int) -> None:
        self.note(f"rank {rank.rank}.{rank.incarnation} trains in epoch {epoch} after {steps} steps")
        self._entered.setdefault(epoch, set()).add(rank.rank)

    def taken(self, rank: SimulatedRank, commit: Commit) -> None:
        self.note(f"rank {rank.rank}.{rank.incarnation} moves to epoch {commit.reshape.epoch} by {commit.reshape.mode}")
        self.happened("taken", rank)

    def watched(self, rank: SimulatedRank) -> None:
        if rank.cycle.phase is RankPhase.PARKED:
            state = rank.acceptor.state
            self.note(f"rank {rank.rank} parks in epoch {state.epoch} at {state.steps_applied}, voted {state.voted}")

    def reached(self, rank: SimulatedRank, term: int) -> None:
        """A message of a scheduler has got there; that of an earlier one is refused."""
        promised = rank.acceptor.promised
        rank.acceptor.follow(term)
        if term < promised.term:
            self.breaks(f"fenced: rank {rank.rank} listens to term {term}, promised to {promised}")

    # ---- faults

    def kill(self, rank: SimulatedRank) -> None:
        self._died(rank, "dies")
        self.tell(VerdictKind.FAIL_STOP, rank, self.random.uniform(0.05, 1.0), 0.0)

    def leaves(self, rank: SimulatedRank) -> None:
        """It was told to."""
        if rank.alive:
            self._died(rank, "leaves")

    def _died(self, rank: SimulatedRank, how: str) -> None:
        self.world.disturbed(f"{self.job_id} rank {rank.rank}.{rank.incarnation} {how}, {rank.acceptor.state.phase}")
        rank.die()
        self._died_lately.add(rank.rank)
        self._steps_in.clear()  # copies are as they should be only after steps without it
        there = [one for one in self.processes.values() if one.alive and not one.is_given_up]
        self._nothing_left = not any(one.held or one.kept for one in there)
        self.missed(rank, rank.waits_for)
        self.world.after(self.random.uniform(0.05, 3.0), lambda: self._replace(rank))

    def _replace(self, dead: SimulatedRank) -> None:
        if self.ranks[dead.rank] is not dead:
            return
        dead.is_given_up = True
        rank = self._process(self, dead.rank, dead.incarnation + 1)
        self.world.disturbed(f"{self.job_id} rank {rank.rank}.{rank.incarnation} is there")
        self._add(rank)
        rank.start(None)
        self.tell(VerdictKind.REJOINED, rank, self.random.uniform(0.02, 0.5), 1.0)
        self.happened("joined", rank)

    def stop(self, rank: SimulatedRank, seconds: float) -> None:
        """It hangs; the detector says so if it lasts, and perhaps its node is given up while it may still go on."""
        self.world.disturbed(f"{self.job_id} rank {rank.rank}.{rank.incarnation} stops for {seconds:.1f} s")
        rank.is_stopped = True
        told_after = self.random.uniform(1.0, 2.0)
        if seconds > told_after:
            self.world.after(told_after, lambda: self._given_up(rank))
        self.world.after(seconds, lambda: self._goes_on(rank))

    def _given_up(self, rank: SimulatedRank) -> None:
        if rank.alive:
            rank.is_given_up = True
            self.tell(VerdictKind.HANG, rank, 0.0, 0.0)
            if self.random.random() < 0.5:
                self.world.after(self.random.uniform(0.05, 3.0), lambda: self._replace(rank))

    def _goes_on(self, rank: SimulatedRank) -> None:
        if rank.alive:
            self.world.disturbed(f"{self.job_id} rank {rank.rank}.{rank.incarnation} goes on")
            rank.go_on()

    def tell(self, kind: VerdictKind, rank: SimulatedRank, seconds: float, throughput: float) -> None:
        culprit = CulpritRecord(
            rank=rank.rank, incarnation=rank.incarnation, node=self.node_of(rank.rank), device=f"gpu-{rank.rank}"
        )
        when = () if kind in (VerdictKind.FAIL_STOP, VerdictKind.HANG, VerdictKind.REJOINED) else (self.world.loop.now,)

        def verdict() -> VerdictRecord:
            return VerdictRecord(
                verdict_id=verdict_id(self.job_id, kind, rank.rank, rank.incarnation, *when),
                job_id=self.job_id,
                kind=kind,
                culprits=(culprit,),
                throughput=throughput,
                throughput_margin=0.02,
                confidence=0.99,
                first_iteration=1,
                decided_iteration=1,
                decided_at=self.world.now(),
            )

        async def say(fleet: Coordinator) -> None:
            await fleet.tell(self.job_id, events.VerdictsTaken((verdict(),)))

        self.world.until_taken(say, seconds, lambda: True)

    # ---- after a calm

    def check_calm(self, view: JobView) -> None:
        """Everybody trains, in one epoch, and owes nothing; and the scheduler and its history say so.

        More deaths at a time than the copies are for may leave it stuck, as does that of all who held anything; it says
        what would free it.
        """
        known = view.known
        stuck, is_beyond = view.standing.stuck, self._nothing_left or len(self._died_lately) > self._most_survived
        if stuck and stuck.reason is StuckReason.NOTHING_HELD and is_beyond:
            return
        for number, rank in self.ranks.items():
            state = rank.acceptor.state
            idle = number not in known.layout.ranks and state.phase in (RankPhase.JOINING, RankPhase.PARKED)
            if not idle and (state.phase is not RankPhase.TRAINING or state.epoch != known.epoch):
                self.breaks(f"nobody_idle: rank {number} is {state.phase} in {state.epoch}, the job in {known.epoch}")
            elif not idle and rank.cycle.steps_applied < self.num_steps - 2:
                self.breaks(f"nobody_idle: rank {number} is at step {rank.cycle.steps_applied} of {self.num_steps}")
            elif asked := rank.owes:
                self.breaks(f"no_debt: rank {number} still has {asked}")
        if len(known.layout.ranks) < len(self.home.ranks):
            self.breaks(f"nobody_idle: {len(known.layout.ranks)} of {len(self.home.ranks)} ranks are in use")
        if stuck or self.world.loop.now - self._stepped_at > _MOST_STEP_SECONDS:
            self.breaks(f"ends: stuck, {stuck}, no step since {self._stepped_at:.3f}")
        if view.standing.training != known.layout.ranks:
            self.breaks(f"standing_is_true: it says {view.standing.summary} of {known.layout.ranks}")
        shares = {each.ranks[0]: each.num_micro_batches for each in known.layout.replicas}
        for rank in self.ranks.values() if self.home.whole and known.epoch else ():
            if shares != (weights := rank.weights):
                self.breaks(f"history_is_true: rank {rank.rank} goes by {weights}, the layout has {shares}")
        stored = restored_job(self.world.history.stored(self.job_id), "").known
        for what in ("layout", "epoch", "state", "ranks"):
            if getattr(stored, what) != getattr(known, what):
                self.breaks(f"row_is_true: {what} {getattr(stored, what)} for {getattr(known, what)}")
        history = self.world.history.jobs[self.job_id]
        if history.state is not known.state:
            self.breaks(f"history_is_true: {history.state} for {known.state}")
        for incident in history.incidents.values():
            self.breaks(f"no_ghost_incident: {incident.incident_id}, {incident.kind} of {incident.culprits}")
        for plan, state in self.world.history.outcomes(self.job_id):
            if state not in ENDS:
                self.breaks(f"told_once: plan {plan.plan_id} is {state}")
            elif state is not PlanState.ABORTED and not self._entered.get(plan.epoch, set()) >= {*plan.layout.ranks}:
                self.breaks(f"history_is_true: plan {plan.plan_id} is {state}, {self._entered.get(plan.epoch)} entered")
            elif state is PlanState.ABORTED and plan.epoch == known.epoch:
                self.breaks(f"history_is_true: plan {plan.plan_id} is {state}, and everybody trains by it")
