"""Frames as operations: what each worker ran in an iteration, rebuilt from what its ranks measured.

A rank reports sums over the iteration. They are dealt out over its micro-batches by predicted cost and laid along the
schedule, so what waits for what is as it was; only how the sums were spread within the iteration is an estimate. A
worker takes as long as its slowest tensor shard and the exchange between them. What the pipeline waited beyond that is
put down to transfers, equally.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from attribution import Operations
from attribution.operations import OperationType
from layouts.instructions import Op
from layouts.schedules import one_f_one_b
from offline.errors import RecordingError
from offline.rank_rows import RankRow, rank_rows

_SENDS = {
    Op.SEND_ACTIVATION: (OperationType.FORWARD_SEND, OperationType.FORWARD_RECV, 1),
    Op.SEND_GRADIENT: (OperationType.BACKWARD_SEND, OperationType.BACKWARD_RECV, -1),
}
_RECEIVES = {Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1)}
_Row = tuple[int, int, int, int, str, float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """One stage of one replica in one iteration; seconds."""

    rank: int
    forward: float
    backward: float
    data: float
    optimizer: float
    wait_pipeline: float
    gradient: float
    vote: float
    micro_batches: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """Operations of a job's recent iterations.

    Attributes:
        operations: As :func:`attribution.analyze` wants them.
        iterations: Which iterations they are of.
        epoch: Epoch of all of them.
        wall_seconds: Mean iteration as the ranks measured it.
        num_left_out: Frames that were no plain, complete iterations of that epoch.
    """

    operations: Operations
    iterations: tuple[int, ...]
    epoch: int
    wall_seconds: float
    num_left_out: int


def operations_of(frames: Sequence[pb.Frame]) -> Rebuilt:
    """The operations in some frames, oldest first; only those of the newest epoch are used.

    Raises:
        RecordingError: No frame is a plain, complete iteration.
    """
    epoch = max((frame.epoch for frame in frames), default=0)
    rows: list[_Row] = []
    walls: list[float] = []
    iterations: list[int] = []
    columns: set[tuple[tuple[int, int], ...]] = set()
    for frame in frames:
        ranks = list(rank_rows(frame))
        complete = ranks and not frame.missing_ranks and frame.epoch == epoch
        if not complete or any(row.planned or not row.micro_batches or row.forward <= 0 for row in ranks):
            continue
        workers = _workers(ranks)
        if not _is_grid(workers):
            continue
        columns.add(tuple(workers))
        rows += _lay_out(frame.iteration, workers)
        walls.append(max(row.wall for row in ranks))
        iterations.append(frame.iteration)
    if not iterations or len(columns) > 1:
        raise RecordingError(
            f"none of the {len(frames)} newest iterations is plain and complete: wait for some, or ask for more"
        )
    names = ("step", "dp_rank", "stage", "rank", "optype", "start_ts", "duration", "mb_id")
    table = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return Rebuilt(
        operations=Operations.from_columns(table),
        iterations=tuple(iterations),
        epoch=epoch,
        wall_seconds=float(np.mean(walls)),
        num_left_out=len(frames) - len(iterations),
    )


def slowest_shards(frames: Iterable[pb.Frame]) -> dict[int, int]:
    """The lowest rank of each worker to the rank of it that computes longest, by its mean over some frames."""
    sums: dict[tuple[int, int], dict[int, float]] = {}
    for frame in frames:
        for row in rank_rows(frame):
            worker = sums.setdefault((row.replica, row.stage), {})
            worker[row.rank] = worker.get(row.rank, 0.0) + row.forward + row.backward
    return {min(ranks): max(ranks, key=lambda rank: (ranks[rank], -rank)) for ranks in sums.values()}


def _workers(ranks: Iterable[RankRow]) -> dict[tuple[int, int], _Worker]:
    shards: dict[tuple[int, int], list[RankRow]] = {}
    for row in ranks:
        shards.setdefault((row.replica, row.stage), []).append(row)
    # The last to arrive waits for the exchange only.
    exchange: dict[int, float] = {}
    for (_, stage), members in shards.items():
        least = min(row.wait_gradient for row in members)
        exchange[stage] = min(exchange.get(stage, least), least)
    vote = min(row.wait_vote for members in shards.values() for row in members)
    found = {}
    for place, members in sorted(shards.items()):
        forward, backward = max(row.forward for row in members), max(row.backward for row in members)
        together = max(row.forward + row.backward + row.wait_tensor for row in members)
        stretch = max(together / (forward + backward), 1.0) if forward + backward > 0 else 1.0
        found[place] = _Worker(
            rank=min(row.rank for row in members),
            forward=forward * stretch,
            backward=backward * stretch,
            data=max(row.data for row in members),
            optimizer=max(row.optimizer for row in members),
            wait_pipeline=min(row.wait_pipeline for row in members),
            gradient=exchange[place[1]],
            vote=vote,
            micro_batches=members[0].micro_batches,
        )
    return found


def _is_grid(workers: dict[tuple[int, int], _Worker]) -> bool:
    """Every replica has all stages, and each of its stages the same micro-batches."""
    replicas, stages = {place[0] for place in workers}, {place[1] for place in workers}
    if len(workers) != len(replicas) * len(stages) or stages != set(range(len(stages))):
        return False
    indices = {(d, tuple(index for index, _ in one.micro_batches)) for (d, _), one in workers.items()}
    return len(indices) == len(replicas)


def _lay_out(step: int, workers: dict[tuple[int, int], _Worker]) -> list[_Row]:
    """One iteration's operations, with transfers as long as the pipeline's waiting leaves room for."""
    replicas = sorted({place[0] for place in workers})
    rows: list[_Row] = []
    for d in replicas:
        stages = [workers[place] for place in sorted(workers) if place[0] == d]
        bare, waited = _run(step, d, stages, 0.0)
        num_receives = sum(row[4].endswith("recv") for row in bare)
        unexplained = sum(max(one.wait_pipeline - wait, 0.0) for one, wait in zip(stages, waited, strict=True))
        transfer = unexplained / num_receives if num_receives else 0.0
        rows += bare if transfer <= 0 else _run(step, d, stages, transfer)[0]
    return rows + _tail(step, workers, rows)


def _run(step: int, d: int, stages: Sequence[_Worker], transfer: float) -> tuple[list[_Row], list[float]]:
    """One replica's pipeline, operation by operation; and how long each stage waited in it."""
    indices = [index for index, _ in stages[0].micro_batches]
    programs = [one_f_one_b(s, len(stages), indices) for s in range(len(stages))]
    costs = [dict(one.micro_batches) for one in stages]
    clocks, positions, waited = [0.0] * len(stages), [0] * len(stages), [0.0] * len(stages)
    sent: dict[tuple[Op, int, int], float] = {}
    rows: list[_Row] = []

    def note(s: int, kind: str, start: float, end: float, batch: int) -> None:
        rows.append((step, d, s, stages[s].rank, kind, start, end - start, batch))

    for s, one in enumerate(stages):
        note(s, OperationType.INPUT, 0.0, one.data, -1)
        clocks[s] = one.data
    while any(position < len(program) for position, program in zip(positions, programs, strict=True)):
        for s, program in enumerate(programs):
            while positions[s] < len(program):
                op, batch = program[positions[s]].op, program[positions[s]].micro_batch
                if op in _RECEIVES:
                    send, offset = _RECEIVES[op]
                    begun = sent.get((send, s + offset, batch))
                    if begun is None:
                        break
                    end = max(begun, clocks[s]) + transfer
                    sends, receives, _ = _SENDS[send]
                    note(s + offset, sends, begun, end, batch)
                    note(s, receives, clocks[s], end, batch)
                    waited[s] += end - clocks[s]
                    clocks[s] = end
                elif op in _SENDS:
                    sent[op, s, batch] = clocks[s]
                elif op in (Op.FORWARD, Op.BACKWARD):
                    forward = op is Op.FORWARD
                    seconds = (stages[s].forward if forward else stages[s].backward) * costs[s][batch]
                    kind = OperationType.FORWARD if forward else OperationType.BACKWARD
                    note(s, kind, clocks[s], clocks[s] + seconds, batch)
                    clocks[s] += seconds
                positions[s] += 1
    return rows, waited


def _tail(step: int, workers: dict[tuple[int, int], _Worker], rows: Sequence[_Row]) -> list[_Row]:
    """The gradient exchange of each stage, the vote of all, and the optimizer."""
    ends: dict[tuple[int, int], float] = {}
    for row in rows:
        if row[4] in (OperationType.FORWARD, OperationType.BACKWARD):
            ends[row[1], row[2]] = max(ends.get((row[1], row[2]), 0.0), row[5] + row[6])
    exchanged: dict[int, float] = {}
    for (d, s), one in workers.items():
        exchanged[s] = max(exchanged.get(s, 0.0), ends[d, s] + one.gradient)
    voted = max(exchanged.values()) + max(one.vote for one in workers.values())
    found: list[_Row] = []
    for (d, s), one in workers.items():
        end, reduced = ends[d, s], exchanged[s]
        found.append((step, d, s, one.rank, OperationType.GRADS_REDUCE_SCATTER, end, reduced - end, -1))
        found.append((step, d, s, one.rank, OperationType.CLIP_GRADS, reduced, voted - reduced, -1))
        found.append((step, d, s, one.rank, OperationType.OPTIMIZER, voted, one.optimizer, -1))
    return found
