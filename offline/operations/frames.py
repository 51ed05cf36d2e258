"""Steps of recorded operations as the frames that the detector reads: one entry a worker, as its SDK would send it.

A recording of operations does not say what a stage's work costs, so the stage's own first steps do. A device that was
slow from the first step on is still told from its peers of the same stage. Nor does it say how long sequences are:
where micro-batches differ by more than noise, and on all stages alike, what their stages share is their work. So is
what befalls all replicas of a stage at once (:mod:`evenkeel.offline.operations.stage_work`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from evenkeel.attribution import Operations
from evenkeel.attribution.causes.sequences import medians, sequence_factors
from evenkeel.attribution.operations import COMPUTE, OperationType
from evenkeel.numeric.arrays import Floats, Ints
from evenkeel.offline.operations.stage_work import stage_work
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.traffic import TrafficObservation

_STEPS_FOR_COST = 8
# With two stages what they share is half of what a slow device does to one of them.
_FEWEST_STAGES_TO_SHARE = 3
_SMALLEST_SPREAD = 0.03
_TIMES_THE_NOISE = 3.0
_SCALE_OF_MEDIAN = 1.4826
_GRADIENT = (
    OperationType.GRADS_REDUCE_SCATTER,
    OperationType.SEPARATE_GRADS_ALL_REDUCE,
    OperationType.LAYERNORM_GRADS_ALL_REDUCE,
    OperationType.EMBEDDING_GRADS_ALL_REDUCE,
    OperationType.PARAMS_ALL_GATHER,
)
_PIPELINE = (
    OperationType.FORWARD_RECV,
    OperationType.FORWARD_SEND,
    OperationType.BACKWARD_RECV,
    OperationType.BACKWARD_SEND,
)
_OTHER = (OperationType.OPTIMIZER, OperationType.GARBAGE_COLLECTION, OperationType.INPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFrames:
    """A recording as frames.

    Attributes:
        frames: In the order of its steps; time starts at 0 and runs by the steps' lengths. To be gone through once.
        notes: What a reader should know.
    """

    frames: Iterator[FrameObservation]
    notes: tuple[str, ...]


def frames_of(operations: Operations, *, job_id: str, traffic: Mapping[int, TrafficObservation]) -> RecordedFrames:
    """The frames of a recording.

    Args:
        operations: The recording.
        job_id: What to call the job.
        traffic: Traffic of each step, as far as it is known; its entries are the step's workers.
    """
    steps, step_of = np.unique(operations.step, return_inverse=True)
    ranks, first, rank_of = np.unique(operations.rank, return_index=True, return_inverse=True)
    shape = (len(steps), len(ranks))

    def seconds_of(*kinds: OperationType) -> Floats:
        chosen = np.isin(operations.optype, list(kinds))
        flat = np.bincount(
            step_of[chosen] * shape[1] + rank_of[chosen],
            weights=operations.duration_seconds[chosen],
            minlength=shape[0] * shape[1],
        )
        found: Floats = flat.astype(np.float64).reshape(shape)
        return found

    compute = seconds_of(*COMPUTE)
    waits = np.stack(
        [np.zeros(shape), seconds_of(*_PIPELINE), seconds_of(*_GRADIENT), seconds_of(OperationType.CLIP_GRADS)], axis=2
    )
    other, data = seconds_of(*_OTHER), seconds_of(OperationType.INPUT)
    forwards = operations.optype == OperationType.FORWARD
    chosen = step_of[forwards] * shape[1] + rank_of[forwards]
    batches = np.bincount(chosen, minlength=shape[0] * shape[1]).reshape(shape).astype(np.int64)
    weights = np.bincount(chosen, weights=_dearness(operations)[forwards], minlength=shape[0] * shape[1])
    dear = weights.astype(np.float64).reshape(shape)
    wall, lengths = _walls(operations, step_of, rank_of, shape)
    present = np.zeros(shape, dtype=np.bool_)
    present[step_of, rank_of] = True
    stages = operations.stage[first]
    course = stage_work(compute / np.maximum(dear, 1e-9), stages, steps, num_first=_STEPS_FOR_COST)
    work = dear * (_stage_costs(compute, dear, stages) * course.factors)[:, stages]
    closed_at = np.cumsum(lengths)
    frames = (
        _frame(
            job_id=job_id,
            sequence=row,
            iteration=step,
            closed_at=float(closed_at[row]),
            ranks=ranks,
            there=np.flatnonzero(present[row]),
            stages=stages,
            replicas=operations.dp_rank[first],
            columns=(compute[row], other[row], data[row], wall[row], work[row]),
            waits=waits[row],
            batches=batches[row],
            traffic=traffic.get(step),
        )
        for row, step in enumerate(steps.tolist())
    )
    return RecordedFrames(frames=frames, notes=course.notes)


def _walls(operations: Operations, step_of: Ints, rank_of: Ints, shape: tuple[int, int]) -> tuple[Floats, Floats]:
    """Seconds from a worker's first operation to its last, and the length of each step."""
    starts, ends = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(starts, (step_of, rank_of), operations.start_seconds)
    np.maximum.at(ends, (step_of, rank_of), operations.end_seconds)
    there = np.isfinite(starts)
    walls = np.where(there, ends - np.where(there, starts, 0.0), 0.0)
    return walls, ends.max(axis=1) - starts.min(axis=1)


def _dearness(operations: Operations) -> Floats:
    """How much of the usual work each operation's micro-batch is; 1 everywhere unless sequences clearly differ.

    They do where micro-batches differ by more than the noise of a single computation leaves in what all computations on
    one of them share.
    """
    rows = np.flatnonzero(np.isin(operations.optype, list(COMPUTE)) & (operations.duration_seconds > 0))
    num_stages = len(np.unique(operations.stage))
    if num_stages < _FEWEST_STAGES_TO_SHARE or (operations.micro_batch[rows] < 0).any():
        return np.ones(len(operations))
    factors, _ = sequence_factors(operations, operations.duration_seconds)
    shared = np.log(factors[rows])
    _, kind = np.unique(operations.optype[rows], return_inverse=True)
    places = np.stack([operations.rank[rows], operations.global_chunk[rows], kind.ravel()])
    own = np.log(operations.duration_seconds[rows]) - shared
    noise = _spread(own, np.unique(places, axis=1, return_inverse=True)[1].ravel())
    # The median of so many values of that noise.
    left = np.sqrt(np.pi / 2 / (2 * num_stages)) * noise
    if _spread(shared, np.zeros(len(rows), dtype=np.int64)) < max(_SMALLEST_SPREAD, _TIMES_THE_NOISE * left):
        return np.ones(len(operations))
    return factors


def _spread(values: Floats, group: Ints) -> float:
    """Robust standard deviation of values around the median of their group."""
    return _SCALE_OF_MEDIAN * float(np.median(np.abs(values - medians(group, values)[group])))


def _stage_costs(compute: Floats, batches: Floats, stages: Ints) -> Floats:
    """Seconds of a usual micro-batch on each stage: the lower median over its workers, since illness only slows.

    Args:
        compute: One row a step, one column a worker, seconds.
        batches: Micro-batches of each, in usual ones.
        stages: Stage of each worker.
    """
    early = compute[:_STEPS_FOR_COST] / np.maximum(batches[:_STEPS_FOR_COST], 1e-9)
    costs = np.ones(int(stages.max()) + 1)
    for stage in range(len(costs)):
        ran = early[:, stages == stage]
        workers = sorted(float(np.median(own[own > 0])) for own in ran.T if (own > 0).any())
        if workers:
            costs[stage] = workers[(len(workers) - 1) // 2]
    return costs


def _frame(
    *,
    job_id: str,
    sequence: int,
    iteration: int,
    closed_at: float,
    ranks: Ints,
    there: Ints,
    stages: Ints,
    replicas: Ints,
    columns: tuple[Floats, Floats, Floats, Floats, Floats],
    waits: Floats,
    batches: Ints,
    traffic: TrafficObservation | None,
) -> FrameObservation:
    compute, other, data, wall, work = (column[there] for column in columns)
    count = len(there)
    nothing, nowhere = np.zeros(count), np.zeros(count, dtype=np.int64)
    unknown, no = np.full(count, np.nan), np.zeros(count, dtype=np.bool_)
    missing = np.setdiff1d(np.arange(len(ranks)), there)
    return FrameObservation(
        job_id=job_id,
        sequence=sequence,
        iteration=iteration,
        epoch=0,
        closed_at_unix_seconds=closed_at,
        missing_ranks=tuple(ranks[missing].tolist()),
        ranks=ranks[there],
        incarnations=nowhere,
        nodes=("",) * count,
        devices=("",) * count,
        planned=no,
        compute_seconds=compute,
        other_seconds=other,
        wall_seconds=wall,
        wait_seconds=waits[there],
        token_flops=work,
        square_flops=nothing,
        has_flops=no,
        num_micro_batches=batches[there],
        tokens=nothing,
        sums_of_squares=nothing,
        work_keys=-1.0 - stages[there].astype(np.float64),
        replicas=replicas[there],
        stages=stages[there],
        shards=nowhere,
        losses=unknown,
        has_loss=no,
        gradient_norms=unknown,
        has_gradient_norm=no,
        data_seconds=data,
        traffic=traffic,
    )
