"""Which micro-batches cost more than others because of what is in them.

A long sequence makes its micro-batch dear on every stage, forwards and backwards; noise and slow devices do not. A
micro-batch's factor is therefore the geometric mean, over all computations on it, of duration over the mean of the same
computation on other micro-batches.
"""

import numpy as np
import numpy.typing as npt

from attribution.operations import Operations, OperationType

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_TINY = 1e-9


def sequence_factors(operations: Operations, seconds: Floats) -> tuple[Floats, float | None]:
    """How dear each computation's micro-batch is, and how well forwards foretell backwards.

    Args:
        operations: The recording.
        seconds: What each operation takes of its own.

    Returns:
        A factor an operation, 1 where there is no micro-batch; and the correlation of a forward with the backward of
        the same micro-batch on the same chunk, None where nothing varies or micro-batches are not recorded.
    """
    factors = np.ones(len(operations))
    is_forward = operations.optype == OperationType.FORWARD
    computes = (is_forward | (operations.optype == OperationType.BACKWARD)) & (operations.micro_batch >= 0)
    rows = np.flatnonzero(computes & (seconds > 0))
    if not len(rows):
        return factors, None
    place = np.stack([is_forward[rows], operations.dp_rank[rows], operations.global_chunk[rows]])
    place_of = np.unique(place, axis=1, return_inverse=True)[1].ravel()
    relative = seconds[rows] / _means(place_of, seconds[rows])[place_of]
    batch = np.stack([operations.step[rows], operations.dp_rank[rows], operations.micro_batch[rows]])
    batch_of = np.unique(batch, axis=1, return_inverse=True)[1].ravel()
    factors[rows] = np.exp(_means(batch_of, np.log(np.maximum(relative, _TINY))))[batch_of]
    return factors, _correlation(batch_of, operations.global_chunk[rows], is_forward[rows], relative)


def _means(group: Ints, values: Floats) -> Floats:
    found: Floats = np.bincount(group, weights=values) / np.bincount(group)
    return found


def _correlation(batch: Ints, chunk: Ints, is_forward: npt.NDArray[np.bool_], relative: Floats) -> float | None:
    pair = np.unique(np.stack([batch, chunk]), axis=1, return_inverse=True)[1].ravel()
    forwards = np.full(int(pair.max()) + 1, np.nan)
    backwards = forwards.copy()
    forwards[pair[is_forward]] = relative[is_forward]
    backwards[pair[~is_forward]] = relative[~is_forward]
    both = np.isfinite(forwards) & np.isfinite(backwards)
    if both.sum() < 3 or np.std(forwards[both]) < _TINY or np.std(backwards[both]) < _TINY:
        return None
    return float(np.corrcoef(forwards[both], backwards[both])[0, 1])
