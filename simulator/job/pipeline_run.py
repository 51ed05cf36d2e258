"""Executes every operation of a pipeline-parallel job, many iterations at once: what every rank would measure.

A listener to :func:`evenkeel.layouts.programs.execution.walk`. A tensor-parallel stage moves at its slowest shard; a
transfer begins when both its ends are there, as with NCCL and gloo; replicas meet in the gradient exchange and
everybody in the step vote. Iterations start together, as the vote makes them, so all of them are computed side by side
with numpy; so are replicas that do the same work, where nothing is told of links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.execution import COMPUTES, RECEIVES, walk
from evenkeel.layouts.programs.instructions import BACKWARD_PART, Instruction, Op
from evenkeel.layouts.programs.schedules import program_of
from evenkeel.layouts.ranks.traffic import group_number
from evenkeel.simulator.job.hardware import Hardware, ShardWork, shard_work
from evenkeel.simulator.job.links import ChannelTimes, ChannelUse, LinkConditions, TrafficRecorder
from evenkeel.simulator.job.workload import Workload

Floats = NDArray[np.float64]

_USES = {
    Op.RECEIVE_ACTIVATION: (ChannelUse.ACTIVATION_SENT, ChannelUse.ACTIVATION_RECEIVED),
    Op.RECEIVE_GRADIENT: (ChannelUse.GRADIENT_SENT, ChannelUse.GRADIENT_RECEIVED),
}
_RECEIVED_AS = {Op.SEND_ACTIVATION: Op.RECEIVE_ACTIVATION, Op.SEND_GRADIENT: Op.RECEIVE_GRADIENT}
_MEASURED = ("forward", "backward", "waiting_tensor", "waiting_pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """What each rank measured; every array is ``[iterations, ranks]``, seconds; ranks ascending as in the layout.

    ``traffic`` holds the operations with others, where the run was given link conditions.
    """

    ranks: tuple[int, ...]
    forward: Floats
    backward: Floats
    waiting_tensor: Floats
    waiting_pipeline: Floats
    waiting_gradient: Floats
    waiting_vote: Floats
    wall: Floats
    traffic: tuple[ChannelTimes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is run.

    Attributes:
        layout: Who holds what.
        model: Costs of the blocks.
        hardware: Healthy speeds.
        workload: All micro-batches.
        slowdown: Compute time factor, ``[iterations, ranks]``.
        column: Each rank's place in ``slowdown``.
        links: Noise and faults of the links; None = none, and nothing is told.
        traffic: What is told.
    """

    layout: Layout
    model: ModelSpec
    hardware: Hardware
    workload: Workload
    slowdown: Floats
    column: Mapping[int, int]
    links: LinkConditions | None
    traffic: TrafficRecorder


class _StageRun:
    """One stage of replicas that do the same work; ``runs`` are the iterations of each of them in turn.

    Attributes:
        clock: Since the iteration began, ``[shards or 1, runs]``; one row while all shards have the same. It is
            replaced and never written to: what was sent keeps it.
        measured: Seconds by their names in :class:`RankTimes`, ``[shards or 1, runs]``.
    """

    def __init__(self, job: _Job, replicas: Sequence[int], s: int, sizes: tuple[Floats, Floats]) -> None:
        first, num_runs = replicas[0], sizes[0].shape[2]
        stages = [job.layout.replicas[d].stages[s] for d in replicas]
        works = [shard_work(job.model, job.layout, first, s, t) for t in range(len(stages[0].ranks))]
        self._job, self._sizes = job, sizes
        self.ranks = stages[0].ranks
        self.columns = [[job.column[rank] for rank in stage.ranks] for stage in stages]
        self.program = program_of(job.layout, first, s, range(len(sizes[0])))
        distinct = works[:1] if len(set(works)) == 1 else works
        self._forward, self._backward = _healthy_seconds(distinct, *sizes, job.hardware.seconds_per_flop)
        shards = zip(*self.columns, strict=True)
        self._slowdown = np.stack([job.slowdown[:, list(columns)].T.reshape(-1) for columns in shards])
        self._collective = job.hardware.tensor_seconds * stages[0].num_blocks if len(works) > 1 else 0.0
        self._num_blocks = stages[0].num_blocks
        self.clock: Floats = np.zeros((1, num_runs))
        self.measured: dict[str, Floats] = {name: np.zeros((1, num_runs)) for name in _MEASURED}

    def compute(self, one: Instruction) -> None:
        """Every shard does its own part, and then all have waited for the slowest and for the collectives."""
        is_backward = one.op is not Op.FORWARD
        own = (self._backward if is_backward else self._forward)[one.micro_batch] * self._slowdown
        own = own * BACKWARD_PART.get(one.op, 1.0)
        entered = self.clock + own
        ended = entered.max(axis=0)
        # The weights' part is local; that shards end it together is a little too much.
        if one.op is not Op.BACKWARD_WEIGHT and len(self.ranks) > 1:
            ended = ended + self._collective_seconds(one.micro_batch, entered, 1 + is_backward)
        way = "backward" if is_backward else "forward"
        self.measured[way] = self.measured[way] + own
        self.measured["waiting_tensor"] = self.measured["waiting_tensor"] + (ended - entered)
        self.clock = ended[None, :]

    def receive(self, one: Instruction, sender: "_StageRun", sent_at: Floats) -> None:
        """Both ends wait for each other, and then for the transfer; shard t gets it from shard t of the sender's."""
        seconds = self._job.hardware.transfer_seconds
        if self._job.links is None:
            took = np.maximum(sent_at, self.clock) + seconds - self.clock
        else:
            each = [self._transfer(one, t, sender, sent_at, self._job.links) for t in range(len(self.ranks))]
            took = np.stack(each)
        self.measured["waiting_pipeline"] = self.measured["waiting_pipeline"] + took
        self.clock = self.clock + took

    def _transfer(
        self, one: Instruction, t: int, sender: "_StageRun", sent_at: Floats, links: LinkConditions
    ) -> Floats:
        """Seconds that one shard waits; both ends note what they saw."""
        place, receiver = t % len(sender.ranks), self.ranks[t]
        other, sent = sender.ranks[place], sent_at[place % len(sent_at)]
        entered = self.clock[t % len(self.clock)]
        seconds = self._job.hardware.transfer_seconds * links.factors((other, receiver))
        took: Floats = np.maximum(sent, entered) + seconds - entered
        num_bytes, (sent_use, received_use) = self._activation_bytes(one.micro_batch), _USES[one.op]
        self._job.traffic.note(other, sent_use, receiver, num_bytes=num_bytes, entered=sent)
        self._job.traffic.note(receiver, received_use, other, num_bytes=num_bytes, entered=entered, took=took)
        return took

    def _collective_seconds(self, micro_batch: int, entered: Floats, passes: int) -> Floats | float:
        """Seconds of a pass's collectives, taken as one after the pass; every shard notes what it saw of it."""
        if self._job.links is None:
            return self._collective * passes
        seconds: Floats = self._collective * passes * self._job.links.factors(self.ranks)
        ended = entered.max(axis=0) + seconds
        num_bytes = self._activation_bytes(micro_batch) * self._num_blocks * passes
        for t, rank in enumerate(self.ranks):
            self._job.traffic.note(
                rank,
                ChannelUse.COLLECTIVE,
                group_number(self.ranks),
                num_bytes=num_bytes,
                entered=entered[t],
                took=ended - entered[t],
                num_members=len(self.ranks),
            )
        return seconds

    def _activation_bytes(self, micro_batch: int) -> Floats:
        assert self._job.links is not None
        return np.asarray(self._sizes[0][micro_batch, 0] * self._job.links.bytes_per_token)


def _healthy_seconds(
    works: Sequence[ShardWork], tokens: Floats, squares: Floats, seconds_per_flop: float
) -> tuple[Floats, Floats]:
    """Forward and backward seconds, ``[micro_batches, shards or 1, runs]``, of every micro-batch on healthy devices."""
    flops = [work.flops_per_token * tokens + work.flops_per_squared_length * squares for work in works]
    backward = [each * work.backward_multiple for each, work in zip(flops, works, strict=True)]
    return np.concatenate(flops, axis=1) * seconds_per_flop, np.concatenate(backward, axis=1) * seconds_per_flop


def _played(job: _Job, replicas: Sequence[int]) -> list[_StageRun]:
    """The stages of replicas that do the same work, after their programs."""
    dues = [job.layout.micro_batches_of(d) for d in replicas]

    def by_run(each: Floats) -> Floats:
        """``[iterations, all micro-batches]`` to ``[micro-batches of a replica, 1, runs]``."""
        parts = [each[:, due.start : due.stop].T for due in dues]
        return np.stack(parts, axis=1).reshape(len(dues[0]), 1, len(dues) * len(each))

    sizes = by_run(job.workload.tokens), by_run(job.workload.sum_of_squares)
    stages = [_StageRun(job, replicas, s, sizes) for s in range(len(job.layout.replicas[replicas[0]].stages))]
    sent: dict[tuple[int, Op, int], Floats] = {}
    for s, one, other in walk([stage.program for stage in stages]):
        if one.op in COMPUTES:
            stages[s].compute(one)
        elif one.op in RECEIVES:
            stages[s].receive(one, stages[other], sent.pop((other, one.op, one.micro_batch)))
        elif one.op in _RECEIVED_AS:
            sent[s, _RECEIVED_AS[one.op], one.micro_batch] = stages[s].clock
    return stages


def _alike(layout: Layout) -> list[list[int]]:
    """Replicas in groups that do the same work: equal stages, equal quotas."""
    groups: dict[object, list[int]] = {}
    for d, replica in enumerate(layout.replicas):
        stages = tuple((stage.first_block, stage.stop_block, stage.shares) for stage in replica.stages)
        groups.setdefault((stages, replica.num_micro_batches), []).append(d)
    return list(groups.values())


def run_pipeline(
    *,
    model: ModelSpec,
    layout: Layout,
    hardware: Hardware,
    workload: Workload,
    slowdown: Floats,
    links: LinkConditions | None = None,
) -> RankTimes:
    """Runs all iterations and returns what every rank would have measured.

    Args:
        model: Costs of the blocks.
        layout: Who holds what.
        hardware: Healthy speeds.
        workload: Micro-batches, ``[iterations, micro_batches]`` with the layout's number of micro-batches.
        slowdown: Compute time factor of each rank, ``[iterations, ranks]``, ranks ascending; noise included.
        links: Noise and faults of the links; None = every transfer takes what the hardware says, and none is told.

    Raises:
        ValueError: ``slowdown`` does not fit the run, or the layout has routes or ranks with several stages: here every
            replica runs alone, and every stage.
    """
    if layout.routes:
        raise ValueError(f"the layout has {len(layout.routes)} routes: simulated jobs must not say that they run them")
    if any(replica.orders for replica in layout.replicas):
        raise ValueError(
            "ranks of the layout have several stages: simulated jobs must not say that they run such layouts"
        )
    ranks = layout.ranks
    shape = (workload.tokens.shape[0], len(ranks))
    if slowdown.shape != shape:
        raise ValueError(f"slowdown has shape {slowdown.shape}, expected [iterations, ranks] = {shape}")
    column = {rank: index for index, rank in enumerate(ranks)}
    traffic = TrafficRecorder()
    into = {name: np.zeros(shape) for name in _MEASURED}
    ready = np.zeros(shape)
    job = _Job(
        layout=layout,
        model=model,
        hardware=hardware,
        workload=workload,
        slowdown=slowdown,
        column=column,
        links=links,
        traffic=traffic,
    )
    for replicas in _alike(layout) if links is None else [[d] for d in range(len(layout.replicas))]:
        for stage in _played(job, replicas):
            for place, columns in enumerate(stage.columns):
                runs = slice(place * shape[0], (place + 1) * shape[0])
                ready[:, columns] = stage.clock[:, runs].T
                for name, seconds in stage.measured.items():
                    into[name][:, columns] = seconds[:, runs].T
    exchanged = _exchange(job, ready)
    # The step vote ends when the last rank arrives.
    last = exchanged.max(axis=1, keepdims=True)
    return RankTimes(
        ranks=ranks,
        waiting_gradient=exchanged - ready,
        waiting_vote=last - exchanged,
        wall=np.repeat(last + hardware.optimizer_seconds, len(ranks), axis=1),
        traffic=traffic.channels,
        **into,
    )


def _exchange(job: _Job, ready: Floats) -> Floats:
    """When each rank has the reduced gradients: equal places of equal replicas exchange, else everybody does."""
    widths = {tuple(len(stage.ranks) for stage in replica.stages) for replica in job.layout.replicas}
    groups = [job.layout.ranks]
    if len(widths) == 1:
        shards = [[rank for stage in replica.stages for rank in stage.ranks] for replica in job.layout.replicas]
        groups = [tuple(sorted(group)) for group in zip(*shards, strict=True)]
    exchanged = np.empty_like(ready)
    for group in groups:
        columns = [job.column[rank] for rank in group]
        factor = 1.0 if job.links is None or len(group) == 1 else job.links.factors(group)
        ended = ready[:, columns].max(axis=1) + job.hardware.exchange_seconds * factor
        exchanged[:, columns] = ended[:, None]
        if job.links is None or len(group) == 1:
            continue
        for rank in group:
            entered = ready[:, job.column[rank]]
            job.traffic.note(
                rank,
                ChannelUse.COLLECTIVE,
                group_number(group),
                num_bytes=np.full(len(ready), float(job.links.exchange_bytes)),
                entered=entered,
                took=ended - entered,
                num_members=len(group),
            )
    return exchanged
