"""All ranks of a job that does not exist, in lockstep: iterations, deaths, parking, plans. No clock, no broker.

What an engine's ranks would agree on by collectives is known here at once, because all of them live in one object: an
iteration is done when every rank of the layout lives and none is interrupted; the switch at a boundary follows the
first step at which all carry the commit; a death parks the survivors, and so does, once the scheduler interrupts them,
a rank that silently stops.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.simulator.job.hardware import Hardware
from evenkeel.simulator.job.noise import rank_noise
from evenkeel.simulator.job.observations import frames
from evenkeel.simulator.job.pipeline_run import RankTimes, run_pipeline
from evenkeel.simulator.job.workload import Workload, length_histogram, packed_workload
from evenkeel.simulator.live.rank_batches import add_news, batch_of, empty_batch
from evenkeel.simulator.live.simulated_rank import SimulatedRank
from evenkeel.telemetry.v2 import batch_pb2, process_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What iterations are made of.

    Attributes:
        token_budget: Tokens of a micro-batch.
        mean_length: Mean length that a token's document has; lengths follow a published histogram, scaled.
    """

    token_budget: int
    mean_length: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration that was computed and not yet done.

    Attributes:
        seconds: How long it takes.
        times: What every rank measures.
        workload: Its micro-batches.
    """

    seconds: float
    times: RankTimes
    workload: Workload


class SimulatedJob:
    """The ranks of one job and what they agree on. Not thread-safe but for the ranks' mailboxes.

    Args:
        job_id: Job.
        home: Layout at the start, standbys included.
        model: Costs of the blocks.
        hardware: Healthy devices, in the seconds in which the job is to run.
        documents: Workload.
        devices_per_node: Names nodes and devices.
        noise: Robust width of each device's own noise.
        seed: Of documents and noise.
    """

    def __init__(
        self,
        *,
        job_id: str,
        home: Layout,
        model: ModelSpec,
        hardware: Hardware,
        documents: Documents,
        devices_per_node: int = 8,
        noise: float = 0.004,
        seed: int = 0,
    ) -> None:
        self.job_id, self.home = job_id, home
        self.model, self._hardware, self._documents = model, hardware, documents
        self._devices_per_node, self._noise = devices_per_node, noise
        self._rng = np.random.default_rng(seed)
        self.layout, self.epoch, self.steps = home, 0, 0
        self.ranks = {rank: SimulatedRank(rank, 0, home) for rank in home.ranks}
        self.ranks.update({rank: SimulatedRank(rank, 0, None) for rank in home.standbys})
        self._incarnations = dict.fromkeys(self.ranks, 0)
        self.silent: set[int] = set()
        self._after_reshape = False
        self._sequences: dict[int, itertools.count[int]] = {}

    @property
    def num_ranks(self) -> int:
        """Ranks that live."""
        return len(self.ranks)

    def where(self, rank: int) -> tuple[str, str]:
        """Node and device of a rank."""
        node, device = divmod(rank, self._devices_per_node)
        return f"node-{node}", f"gpu-{device}"

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the layout that do not live."""
        return tuple(rank for rank in self.layout.ranks if rank not in self.ranks)

    @property
    def can_iterate(self) -> bool:
        """True when every rank of the layout trains."""
        return not self.missing and all(
            self.ranks[rank].mailbox.state.phase is RankPhase.TRAINING and not self.ranks[rank].mailbox.interrupted()
            for rank in self.layout.ranks
        )

    @property
    def is_stuck(self) -> bool:
        """True while survivors wait for somebody who stopped silently and nobody has told them."""
        return bool(set(self.missing) & self.silent)

    def begin(self, speeds: Mapping[int, float]) -> Iteration:
        """Computes the next iteration with devices of these speeds."""
        lengths, probabilities = length_histogram()
        typical = float((lengths**2) @ probabilities / (lengths @ probabilities))
        workload = packed_workload(
            self._rng,
            num_iterations=1,
            num_micro_batches=self.layout.num_micro_batches,
            token_budget=self._documents.token_budget,
            length_scale=self._documents.mean_length / typical,
        )
        slowdown = np.array([[1.0 / speeds.get(rank, 1.0) for rank in self.layout.ranks]])
        times = run_pipeline(
            model=self.model,
            layout=self.layout,
            hardware=self._hardware,
            workload=workload,
            slowdown=slowdown * rank_noise(self._rng, slowdown.shape, sigma=self._noise),
        )
        return Iteration(seconds=float(times.wall.max()), times=times, workload=workload)

    def finish(self, iteration: Iteration, started_at_unix_seconds: float) -> list[batch_pb2.Batch]:
        """The step is done: what every rank emits, and a plan at this boundary if all carry it."""
        (frame,) = frames(
            model=self.model,
            layout=self.layout,
            hardware=self._hardware,
            workload=iteration.workload,
            times=iteration.times,
            devices_per_node=self._devices_per_node,
            epoch=self.epoch,
            first_iteration=self.steps,
            started_at_unix_seconds=started_at_unix_seconds,
        )
        at = started_at_unix_seconds + iteration.seconds
        self.steps += 1
        records = []
        for place, number in enumerate(frame.members.rank.tolist()):
            rank = self.ranks[number]
            rank.num_operations += 4 * int(frame.num_listed[0, place]) + 2
            rank.publish(RankPhase.TRAINING, steps=self.steps)
            batch = batch_of(
                frame,
                place,
                job_id=self.job_id,
                incarnation=rank.incarnation,
                sequence=self._next_sequence(number),
                mark=batch_pb2.MARK_RESHAPE if self._after_reshape else batch_pb2.MARK_UNSPECIFIED,
            )
            records.append(add_news(batch, progress=[self._progress(rank, at)]))
        self._after_reshape = False
        self._switch_at_boundary()
        return records

    def wait_for_plan(self, at_unix_seconds: float) -> list[batch_pb2.Batch]:
        """Nobody iterates: survivors park (or sit in a wait), and apply a plan once all its ranks have it."""
        stuck = self.is_stuck
        for rank in self.ranks.values():
            if rank.mailbox.leaving():
                continue
            training = rank.mailbox.state.phase is RankPhase.TRAINING
            if rank.mailbox.interrupted() and rank.commit is not None:
                rank.park(steps=self.steps)
            if training and (rank.mailbox.interrupted() or (self.missing and not stuck)):
                rank.park(steps=self.steps)
            rank.look()
        self._apply_when_all_have_it()
        operation = "wait:gradient" if stuck else "parked"
        return [
            self._record(number, progress=[self._progress(rank, at_unix_seconds, operation)])
            for number, rank in self.ranks.items()
        ]

    def kill(self, rank: int, at_unix_seconds: float, *, silent: bool) -> list[batch_pb2.Batch]:
        """A rank's process ends; its launcher says so unless the death is silent."""
        dead = self.ranks.pop(rank, None)
        if dead is None:
            return []
        if silent:
            self.silent.add(rank)
            return []
        return [self._told(dead, process_pb2.PROCESS_EVENT_KIND_DIED, at_unix_seconds, "simulated: signal 9")]

    def evicted(self, at_unix_seconds: float) -> list[batch_pb2.Batch]:
        """Ranks that were told to leave have ended."""
        leaving = [rank for rank in self.ranks.values() if rank.mailbox.leaving()]
        records = []
        for rank in leaving:
            rank.publish(RankPhase.FINISHED, steps=self.steps)
            del self.ranks[rank.rank]
            records.append(
                self._told(rank, process_pb2.PROCESS_EVENT_KIND_FINISHED, at_unix_seconds, "simulated: evicted")
            )
        return records

    def replace(self, rank: int, at_unix_seconds: float) -> list[batch_pb2.Batch]:
        """A repaired device: a later process of its rank, which waits for a plan to join by."""
        if rank in self.ranks:
            return []
        self.silent.discard(rank)
        self._incarnations[rank] += 1
        newer = SimulatedRank(rank, self._incarnations[rank], None)
        self.ranks[rank] = newer
        return [self._told(newer, process_pb2.PROCESS_EVENT_KIND_STARTED, at_unix_seconds, "simulated: repaired")]

    def _switch_at_boundary(self) -> None:
        members = [self.ranks[rank] for rank in self.layout.ranks]
        voted = min(rank.mailbox.committed_epoch() for rank in members)
        if voted <= self.epoch:
            return
        for rank in members:
            rank.look(voted)
        self._apply_when_all_have_it()

    def _apply_when_all_have_it(self) -> None:
        commits = [rank.commit for rank in self.ranks.values() if rank.commit is not None]
        if not commits:
            return
        newest = max(commits, key=lambda commit: commit.reshape.epoch)
        reshape = newest.reshape
        everyone = {*reshape.to_layout.ranks, *(rank for rank in self.layout.ranks if rank in self.ranks)}
        for number in everyone:
            rank = self.ranks.get(number)
            if rank is None or rank.commit is None or rank.commit.reshape.epoch != reshape.epoch:
                return
        if newest.steps_applied >= 0:
            self.steps = newest.steps_applied
        self.layout = replace(reshape.to_layout, mix=None)
        self.epoch, self._after_reshape = reshape.epoch, True
        # Whoever has no part in it, before or after, has taken it too.
        everyone.update(number for number, rank in self.ranks.items() if rank.commit in commits)
        for number in everyone:
            self.ranks[number].apply(reshape.epoch, holds_position=number in reshape.to_layout.ranks, steps=self.steps)

    def _progress(self, rank: SimulatedRank, at: float, operation: str = "forward") -> process_pb2.Progress:
        return process_pb2.Progress(
            at_unix_seconds=at,
            iteration=self.steps,
            epoch=self.epoch,
            operation_count=rank.num_operations,
            operation=operation,
            waiting_for=self.missing if operation.startswith("wait") else (),
        )

    def _told(
        self, rank: SimulatedRank, kind: "process_pb2.ProcessEventKind.ValueType", at: float, detail: str
    ) -> batch_pb2.Batch:
        node, device = self.where(rank.rank)
        event = process_pb2.ProcessEvent(
            at_unix_seconds=at,
            kind=kind,
            rank=rank.rank,
            incarnation=rank.incarnation,
            detail=detail,
            node=node,
            device=device,
        )
        return self._record(-1, events=[event])

    def _record(
        self,
        rank: int,
        *,
        progress: Sequence[process_pb2.Progress] = (),
        events: Sequence[process_pb2.ProcessEvent] = (),
    ) -> batch_pb2.Batch:
        node, device = self.where(rank) if rank >= 0 else ("simulated", "")
        process = self.ranks.get(rank)
        batch = empty_batch(
            job_id=self.job_id,
            rank=rank,
            incarnation=process.incarnation if process else 0,
            sequence=self._next_sequence(rank),
            node=node,
            device=device,
        )
        return add_news(batch, progress=progress, events=events)

    def _next_sequence(self, rank: int) -> int:
        process = self.ranks.get(rank)
        key = rank if process is None else rank * 1_000_000 + process.incarnation
        return next(self._sequences.setdefault(key, itertools.count()))
