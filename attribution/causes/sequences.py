"""Which micro-batches cost more than others because of what is in them.

A long sequence makes its micro-batch dear on every stage, forwards and backwards; noise and slow devices do not. A
micro-batch's factor is therefore the middle, over all computations on it, of duration over the mean of the same
computation on other micro-batches: the median, which a pause on one stage does not move; of two stages the geometric
mean.
"""

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.operations import COMPUTE, Operations, OperationType
from evenkeel.numeric.arrays import Floats, Ints

_TINY = 1e-9


def sequence_factors(
    operations: Operations, seconds: Floats, *, apart: tuple[int, ...] = ()
) -> tuple[Floats, float | None]:
    """How dear each computation's micro-batch is, and how well forwards foretell backwards.

    Args:
        operations: The recording.
        seconds: What each operation takes of its own.
        apart: Ranks whose computations compare only with their own: slow workers, whose slowness is no sequence's.

    Returns:
        A factor an operation, 1 where there is no micro-batch; and the correlation of a forward with the backward of
        the same micro-batch on the same chunk, None where nothing varies or micro-batches are not recorded.
    """
    factors = np.ones(len(operations))
    is_forward = operations.optype == OperationType.FORWARD
    computes = np.isin(operations.optype, list(COMPUTE)) & (operations.micro_batch >= 0)
    rows = np.flatnonzero(computes & (seconds > 0))
    if not len(rows):
        return factors, None
    compared = np.where(np.isin(operations.rank[rows], apart), operations.dp_rank[rows], -1)
    kind = np.unique(operations.optype[rows], return_inverse=True)[1].ravel()
    place = np.stack([kind, compared, operations.global_chunk[rows]])
    place_of = np.unique(place, axis=1, return_inverse=True)[1].ravel()
    relative = seconds[rows] / _means(place_of, seconds[rows])[place_of]
    batch = np.stack([operations.step[rows], operations.dp_rank[rows], operations.micro_batch[rows]])
    batch_of = np.unique(batch, axis=1, return_inverse=True)[1].ravel()
    middle = medians if len(np.unique(operations.stage)) > 2 else _means
    factors[rows] = np.exp(middle(batch_of, np.log(np.maximum(relative, _TINY))))[batch_of]
    both = np.isin(operations.optype[rows], [OperationType.FORWARD, OperationType.BACKWARD])
    chunk = operations.global_chunk[rows]
    return factors, _correlation(batch_of[both], chunk[both], is_forward[rows][both], relative[both])


def medians(group: Ints, values: Floats) -> Floats:
    """The median of each group of values; groups are numbered from 0 without gaps."""
    order = np.lexsort((values, group))
    counts = np.bincount(group)
    first = np.cumsum(counts) - counts
    found: Floats = (values[order][first + (counts - 1) // 2] + values[order][first + counts // 2]) / 2
    return found


def _means(group: Ints, values: Floats) -> Floats:
    found: Floats = np.bincount(group, weights=values) / np.bincount(group)
    return found


def _correlation(batch: Ints, chunk: Ints, is_forward: npt.NDArray[np.bool_], relative: Floats) -> float | None:
    if not len(batch):
        return None
    pair = np.unique(np.stack([batch, chunk]), axis=1, return_inverse=True)[1].ravel()
    forwards = np.full(int(pair.max()) + 1, np.nan)
    backwards = forwards.copy()
    forwards[pair[is_forward]] = relative[is_forward]
    backwards[pair[~is_forward]] = relative[~is_forward]
    both = np.isfinite(forwards) & np.isfinite(backwards)
    if both.sum() < 3 or np.std(forwards[both]) < _TINY or np.std(backwards[both]) < _TINY:
        return None
    return float(np.corrcoef(forwards[both], backwards[both])[0, 1])
