"""Workers that compute more slowly than others who do the same: the same stage in other replicas.

Where replicas share their layers out unequally the same stage is not the same work: known work is divided out.
A replica may be slow because its sequences are long, which all of its stages share and which changes from one
micro-batch to the next. So a worker counts as slow by what its replica's other stages do not share, or where the whole
replica is slower by more than micro-batches differ. One step of many, or one micro-batch of each step, decides nothing.
A stage of a single replica has nobody to be compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.attribution.causes.sequences import medians
from evenkeel.attribution.operations import COMPUTE, Operations
from evenkeel.numeric.arrays import Floats, Ints

SMALLEST_EXCESS = 0.05
"""A worker that takes less than so much longer than its peers is like them (log units of time)."""

_FEWEST_MICRO_BATCHES = 8
_STANDARD_ERRORS = 5.0
_SPREADS = 1.0
_SMALLEST_SPREAD = 1e-3
_MOST_STAGES = 1 << 20
# Variance of the difference of two medians, in variances of one value over their number.
_MEDIANS = 2 * np.pi / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batches:
    """Computation by micro-batch: seconds in log units, and where they were spent; sorted by worker and step."""

    seconds: Floats
    step: Ints
    dp_rank: Ints
    stage: Ints
    batch: Ints


def slow_workers(operations: Operations, seconds: Floats) -> tuple[int, ...]:
    """Global ranks of the workers that are slow, ascending.

    Args:
        operations: The recording.
        seconds: What each operation takes of its own.
    """
    if len(np.unique(operations.dp_rank)) < 2:
        return ()
    batches = _batches(operations, seconds)
    excess = batches.seconds - _reference(batches, batches.seconds)
    slow = _stands_out(batches, excess, against=excess, spreads=_SPREADS)
    num_replicas, num_stages = len(np.unique(batches.dp_rank)), len(np.unique(batches.stage))
    if num_stages > 1:
        own = excess - _shared(batches, excess)
        # The stages may have been referred to replicas with other sequences.
        apart = _stands_out(batches, own - _reference(batches, own), against=excess, spreads=0.0)
        apart_in = {one // _MOST_STAGES for one in apart}, {one % _MOST_STAGES for one in apart}
        told = (num_stages > 2 or _is_told(len(apart_in[0]), num_replicas)) and (
            num_replicas > 2 or _is_told(len(apart_in[1]), num_stages)
        )
        slow |= apart if told else _stands_out(batches, own, against=excess, spreads=_SPREADS)
    ranks = operations.rank[np.isin(_worker(operations.dp_rank, operations.stage), list(slow))]
    return tuple(np.unique(ranks).tolist())


def _worker(dp_rank: Ints, stage: Ints) -> Ints:
    found: Ints = dp_rank * _MOST_STAGES + stage
    return found


def _is_told(num_apart: int, num_pairs: int) -> bool:
    """Whether it is known who of pairs that differ is slow, and not the other one quick: most pairs must be alike."""
    return num_pairs > 2 and 2 * num_apart <= num_pairs


def _batches(operations: Operations, seconds: Floats) -> _Batches:
    rows = np.flatnonzero(np.isin(operations.optype, list(COMPUTE)) & (seconds > 0))
    batch = operations.micro_batch[rows]
    if (batch < 0).any():
        # Not recorded: on each stage, computations of a kind run in the same order.
        batch = operations.sequence[rows]
    keys = np.stack([operations.dp_rank[rows], operations.stage[rows], operations.step[rows], batch])
    (dp_rank, stage, step, batch), place = np.unique(keys, axis=1, return_inverse=True)
    spent = np.log(np.bincount(place.ravel(), weights=seconds[rows]))
    if (operations.work[rows] > 0).all():
        # Each row of a micro-batch says what all of them are worth together.
        work = np.bincount(place.ravel(), weights=operations.work[rows]) / np.bincount(place.ravel())
        spent -= np.log(work)
    return _Batches(seconds=spent, step=step, dp_rank=dp_rank, stage=stage, batch=batch)


def _reference(batches: _Batches, values: Floats) -> Floats:
    """What is usual on each one's stage: the lower median over its workers, as illness only slows."""
    found = np.zeros(len(batches.seconds))
    for stage in np.unique(batches.stage):
        mine = batches.stage == stage
        of_workers = sorted(
            float(np.median(values[mine & (batches.dp_rank == dp_rank)]))
            for dp_rank in np.unique(batches.dp_rank[mine])
        )
        found[mine] = of_workers[(len(of_workers) - 1) // 2]
    return found


def _shared(batches: _Batches, excess: Floats) -> Floats:
    """What the stages of a replica have in common in a micro-batch: their median; of two, what the other one shows."""
    _, place = np.unique(np.stack([batches.step, batches.dp_rank, batches.batch]), axis=1, return_inverse=True)
    place = place.ravel()
    middle = medians(place, excess)
    found: Floats = middle[place]
    two = np.bincount(place)[place] == 2
    found[two] = 2 * found[two] - excess[two]
    return found


def _stands_out(batches: _Batches, excess: Floats, *, against: Floats, spreads: float) -> set[int]:
    """Workers whose excess is larger than chance, and than so many spreads of the micro-batches in ``against``."""
    worker = _worker(batches.dp_rank, batches.stage)
    own_of = np.split(np.arange(len(worker)), np.flatnonzero(np.diff(worker)) + 1)
    usual = _usual_spreads(batches, own_of, excess)
    wide = _usual_spreads(batches, own_of, against)
    found = set()
    for own in own_of:
        if len(own) < _FEWEST_MICRO_BATCHES:
            continue
        stage = int(batches.stage[own[0]])
        by_step = np.split(excess[own], np.flatnonzero(np.diff(batches.step[own])) + 1)
        levels = np.sort([np.median(each) for each in by_step])
        level = float(np.mean(levels[:-1] if len(levels) > 1 else levels))
        error = usual[stage] * float(np.sqrt(_MEDIANS / len(own)))
        if level >= max(SMALLEST_EXCESS, _STANDARD_ERRORS * error, spreads * wide[stage]):
            found.add(int(worker[own[0]]))
    return found


def _usual_spreads(batches: _Batches, own_of: Sequence[Ints], values: Floats) -> dict[int, float]:
    """How much micro-batches differ on a worker of each stage: the median over its workers."""
    spreads: dict[int, list[float]] = {}
    for own in own_of:
        apart = np.abs(values[own] - np.median(values[own]))
        spreads.setdefault(int(batches.stage[own[0]]), []).append(1.4826 * float(np.median(apart)))
    return {stage: max(float(np.median(each)), _SMALLEST_SPREAD) for stage, each in spreads.items()}
