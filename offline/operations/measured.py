"""Frames as operations: what each worker ran in an iteration, rebuilt from what its ranks measured.

A rank reports sums over the iteration. They are dealt out over its micro-batches, and where it has several stages over
these, by predicted cost and laid along the programs of the layout, so what waits for what is as it was; only how the
sums were spread within the iteration is an estimate. Where the layout is not known it is 1F1B, one stage a rank. A
worker takes as long as its slowest tensor shard and the exchange between them. What the pipeline waited beyond that is
put down to transfers, equally. Of replicas with pipelines of different depths the one that the others wait for is
taken alone: its stages are nobody else's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.attribution import Operations
from evenkeel.attribution.operations import OperationType
from evenkeel.contracts.frames import Frames
from evenkeel.layouts.programs.instructions import Op
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.samples.job_shape import Course, JobShape, course_of, has_unlike_depths, obstacle, plain_course
from evenkeel.offline.samples.rank_rows import RankRow, rank_rows

_SENDS = {
    Op.SEND_ACTIVATION: (OperationType.FORWARD_SEND, OperationType.FORWARD_RECV),
    Op.SEND_GRADIENT: (OperationType.BACKWARD_SEND, OperationType.BACKWARD_RECV),
}
_RECEIVES = {Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1)}
_PASSES = {
    Op.FORWARD: OperationType.FORWARD,
    Op.BACKWARD: OperationType.BACKWARD,
    Op.BACKWARD_INPUT: OperationType.BACKWARD,
    Op.BACKWARD_WEIGHT: OperationType.BACKWARD_WEIGHT,
}
_ROUNDS = 8
_CLOSE = 0.01
_Row = tuple[int, int, int, int, str, float, float, int, int, float]
_COLUMNS = ("step", "dp_rank", "stage", "rank", "optype", "start_ts", "duration", "mb_id", "gmc", "work")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """The stages of one replica that the same ranks hold, in one iteration; seconds.

    ``work`` is that of its slowest shard, 0 where it is not known: replicas may share out layers and widths unequally.
    """

    rank: int
    forward: float
    backward: float
    data: float
    optimizer: float
    wait_pipeline: float
    gradient: float
    vote: float
    micro_batches: tuple[tuple[int, float], ...]
    work: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """Operations of a job's recent iterations.

    Attributes:
        operations: As :func:`evenkeel.attribution.analyze` wants them.
        iterations: Which iterations they are of.
        epoch: Epoch of all of them.
        wall_seconds: Mean iteration as the ranks measured it.
        num_left_out: Frames that were no plain, complete iterations of that epoch.
        laid_along: Along what they were laid, for people.
    """

    operations: Operations
    iterations: tuple[int, ...]
    epoch: int
    wall_seconds: float
    num_left_out: int
    laid_along: str


def operations_of(frames: Sequence[Frames], shape: JobShape | None = None) -> Rebuilt:
    """The operations in some frames, oldest first; only those of the newest epoch are used.

    Args:
        frames: One iteration each.
        shape: The job's layout, if that is known; of another epoch it says nothing of these.

    Raises:
        RecordingError: No frame is a plain, complete iteration, or the layout is one that cannot be laid out.
    """
    epoch = max((frame.epoch for frame in frames), default=0)
    if shape is not None and shape.epoch != epoch:
        shape = None
    if shape is not None and (why := obstacle(shape)):
        raise RecordingError(f"iterations of epoch {epoch} cannot be taken apart: {why}")
    alone = _waited_for(frames, epoch) if shape is not None and has_unlike_depths(shape) else None
    rows: list[_Row] = []
    walls: list[float] = []
    iterations: list[int] = []
    columns: set[tuple[tuple[int, int], ...]] = set()
    for frame in frames:
        ranks = list(rank_rows(frame))
        complete = ranks and frame.present.all() and frame.epoch == epoch
        if not complete or any(row.planned or not row.micro_batches or row.forward <= 0 for row in ranks):
            continue
        workers = _workers(row for row in ranks if alone in (None, row.replica))
        courses = _courses(workers, shape)
        if courses is None:
            continue
        columns.add(tuple(workers))
        rows += _lay_out(int(frame.iteration[0]), workers, courses)
        walls.append(max(row.wall for row in ranks))
        iterations.append(int(frame.iteration[0]))
    if not iterations and shape is not None:
        return operations_of(frames)  # a loop of one's own may name other positions than it was registered with
    if not iterations or len(columns) > 1:
        raise RecordingError(
            f"none of the {len(frames)} newest iterations is plain and complete: wait for some, or ask for more"
        )
    table = {name: np.array(column) for name, column in zip(_COLUMNS, zip(*rows, strict=True), strict=True)}
    return Rebuilt(
        operations=Operations.from_columns(table),
        iterations=tuple(iterations),
        epoch=epoch,
        wall_seconds=float(np.mean(walls)),
        num_left_out=len(frames) - len(iterations),
        laid_along=_words(shape, epoch, alone),
    )


def _words(shape: JobShape | None, epoch: int, alone: int | None) -> str:
    """Along what operations were laid."""
    if shape is None:
        return f"1f1b, one stage a rank: the layout of epoch {epoch} is not known"
    if alone is None:
        return shape.words
    return f"{shape.words}; replica {alone} alone, which the others wait for: pipelines have different depths"


def _waited_for(frames: Iterable[Frames], epoch: int) -> int | None:
    """The replica that waits least for the others; None where no frame says that."""
    waits: dict[int, list[float]] = {}
    for frame in frames:
        if frame.epoch != epoch or not frame.present.all():
            continue
        least: dict[int, float] = {}
        for row in rank_rows(frame):
            waited = row.wait_gradient + row.wait_vote
            least[row.replica] = min(least.get(row.replica, waited), waited)
        for replica, waited in least.items():
            waits.setdefault(replica, []).append(waited)
    return min(waits, key=lambda replica: (float(np.median(waits[replica])), replica), default=None)


def slowest_shards(frames: Iterable[Frames]) -> dict[int, int]:
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
        paces = [(row.forward + row.backward) / row.work for row in members if row.work > 0]
        known = len(paces) == len(members) and max(paces) > 0
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
            work=(forward + backward) / max(paces) if known else 0.0,
        )
    return found


def _courses(workers: dict[tuple[int, int], _Worker], shape: JobShape | None) -> dict[int, Course] | None:
    """How each replica ran; None where workers or micro-batches are not those of the layout, as after a failure."""
    replicas = sorted({d for d, _ in workers})
    stages = sorted({s for _, s in workers})
    batches = {(d, tuple(index for index, _ in one.micro_batches)) for (d, _), one in workers.items()}
    if len(workers) != len(replicas) * len(stages) or len(batches) != len(replicas):
        return None
    if shape is None:
        run = dict(batches)
        return {d: plain_course(len(stages), run[d]) for d in replicas} if stages == [*range(len(stages))] else None
    layout = shape.layout
    at_work = {d for d, one in enumerate(layout.replicas) if one.num_micro_batches}
    asked = at_work.intersection(replicas) if has_unlike_depths(shape) else at_work
    known = {(d, cell[0]) for d in asked for cell in layout.replicas[d].cells}
    due = {(d, tuple(layout.micro_batches_of(d))) for d in replicas if d < len(layout.replicas)}
    if known != workers.keys() or due != {(d, tuple(sorted(run))) for d, run in batches}:
        return None
    return {d: course_of(shape, d) for d in replicas}


def _lay_out(step: int, workers: dict[tuple[int, int], _Worker], courses: dict[int, Course]) -> list[_Row]:
    """One iteration's operations, with transfers as long as the pipeline's waiting leaves room for."""
    rows: list[_Row] = []
    for d, course in courses.items():
        mine = [workers[place] for place in sorted(workers) if place[0] == d]
        transfer, measured = 0.0, sum([one.wait_pipeline for one in mine])
        for _ in range(_ROUNDS):
            found, waited = _run(step, d, mine, course, transfer)
            num_receives = sum([row[4].endswith("recv") for row in found])
            if not num_receives or abs(missing := measured - sum(waited)) <= _CLOSE * measured:
                break
            transfer = max(transfer + missing / num_receives, 0.0)
        rows += found
    return rows + _tail(step, workers, rows)


def _run(
    step: int, d: int, workers: Sequence[_Worker], course: Course, transfer: float
) -> tuple[list[_Row], list[float]]:
    """One replica's pipeline, operation by operation; and how long each worker waited in it."""
    costs = [dict(one.micro_batches) for one in workers]
    home = {stage: number for number, cell in enumerate(course.cells) for stage in cell}
    clocks, positions, waited = [0.0] * len(workers), [0] * len(workers), [0.0] * len(workers)
    sent: dict[tuple[Op, int, int], float] = {}
    rows: list[_Row] = []

    def note(worker: int, kind: str, start: float, end: float, batch: int, stage: int) -> None:
        work = workers[worker].work * costs[worker].get(batch, 0.0)
        rows.append((step, d, worker, workers[worker].rank, kind, start, end - start, batch, stage, work))

    for number, one in enumerate(workers):
        note(number, OperationType.INPUT, 0.0, one.data, -1, course.cells[number][0])
        clocks[number] = one.data
    while any(position < len(program) for position, program in zip(positions, course.programs, strict=True)):
        for w, program in enumerate(course.programs):
            while positions[w] < len(program):
                instruction = program[positions[w]]
                op, batch, stage = instruction.op, instruction.micro_batch, instruction.stage
                if op in _RECEIVES:
                    send, offset = _RECEIVES[op]
                    begun = sent.get((send, stage + offset, batch))
                    if begun is None:
                        break
                    end = max(begun, clocks[w]) + transfer
                    sends, receives = _SENDS[send]
                    note(home[stage + offset], sends, begun, end, batch, stage + offset)
                    note(w, receives, clocks[w], end, batch, stage)
                    waited[w] += end - clocks[w]
                    clocks[w] = end
                elif op in _SENDS:
                    sent[op, stage, batch] = clocks[w]
                elif op in _PASSES:
                    whole = workers[w].forward if op is Op.FORWARD else workers[w].backward
                    seconds = whole * costs[w][batch] * course.parts[op, stage]
                    note(w, _PASSES[op], clocks[w], clocks[w] + seconds, batch, stage)
                    clocks[w] += seconds
                positions[w] += 1
    return rows, waited


def _tail(step: int, workers: dict[tuple[int, int], _Worker], rows: Sequence[_Row]) -> list[_Row]:
    """The gradient exchange of each stage, the vote of all, and the optimizer."""
    ends: dict[tuple[int, int], float] = {}
    for row in rows:
        if row[4] in _PASSES.values():
            ends[row[1], row[2]] = max(ends.get((row[1], row[2]), 0.0), row[5] + row[6])
    numbers = {stage: number for number, stage in enumerate(sorted({s for _, s in workers}))}
    exchanged: dict[int, float] = {}
    for (d, s), one in workers.items():
        exchanged[s] = max(exchanged.get(s, 0.0), ends[d, numbers[s]] + one.gradient)
    voted = max(exchanged.values()) + max(one.vote for one in workers.values())
    found: list[_Row] = []
    for (d, s), one in workers.items():
        end, reduced = ends[d, numbers[s]], exchanged[s]
        for kind, start, seconds in (
            (OperationType.GRADS_REDUCE_SCATTER, end, reduced - end),
            (OperationType.CLIP_GRADS, reduced, voted - reduced),
            (OperationType.OPTIMIZER, voted, one.optimizer),
        ):
            found.append((step, d, numbers[s], one.rank, kind, start, seconds, -1, s, 0.0))
    return found
