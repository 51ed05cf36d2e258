"""Stages whose work takes longer than that of the others, in all replicas."""

import numpy as np

from evenkeel.attribution.operations import COMPUTE, Operations
from evenkeel.numeric.arrays import Floats

SMALLEST_EXCESS = 0.05
"""A stage that takes less than so much longer than the mean is like the others."""

_OF_THE_HEAVIEST = 0.5


def heavy_stages(operations: Operations, seconds: Floats, *, ill_ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The heaviest stages: those that exceed the mean by 5 %, and by half as much as the heaviest does.

    Args:
        operations: The recording.
        seconds: What each operation takes of its own.
        ill_ranks: Workers whose slowness is their own and not their stage's.
    """
    rows = np.flatnonzero(np.isin(operations.optype, list(COMPUTE)))
    keys = np.stack([operations.stage[rows], operations.dp_rank[rows], operations.step[rows]])
    (stage_of, dp_rank, _), place = np.unique(keys, axis=1, return_inverse=True)
    steps = np.bincount(place.ravel(), weights=seconds[rows])
    ill = np.bincount(place.ravel(), weights=np.isin(operations.rank[rows], ill_ranks)) > 0
    # Stages compare by the same replicas, whose sequences are their own.
    spoilt = np.isin(dp_rank, dp_rank[ill])
    ill = ill if spoilt.all() else spoilt
    stages = np.unique(stage_of)
    costs = np.zeros(len(stages))
    for stage in stages.tolist():
        mine = stage_of == stage
        mine = mine & ~ill if (mine & ~ill).any() else mine
        # The middle of its workers, each by the middle of its steps: neither one slow worker nor one slow step counts.
        workers = sorted(float(np.median(steps[mine & (dp_rank == one)])) for one in np.unique(dp_rank[mine]))
        costs[stage] = workers[(len(workers) - 1) // 2]
    excess = costs / costs.mean() - 1
    least = max(SMALLEST_EXCESS, _OF_THE_HEAVIEST * float(excess.max()))
    return tuple(stages[excess >= least].tolist())
