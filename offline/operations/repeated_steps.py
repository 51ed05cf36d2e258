"""Steps that were run twice, as after a restart from a checkpoint: the rows of both runs bear the same number."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.operations import COMPUTE
from evenkeel.numeric.arrays import Bools


def earlier_runs(columns: Mapping[str, npt.NDArray[np.generic]]) -> tuple[Bools, list[int]]:
    """Rows of runs that a later run of the same step took the place of, and which steps these are.

    A step falls into runs where nothing of it goes on for longer than a step usually takes. The last run counts if
    every worker has as many computations in it as in a usual step; else the step is left as it is.

    Args:
        columns: As :meth:`evenkeel.attribution.Operations.from_columns` has found them to be right.
    """
    start = columns["start_ts"].astype(np.float64)
    end = start + columns["duration"].astype(np.float64)
    steps, place = np.unique(columns["step"].astype(np.int64), return_inverse=True)
    workers = np.stack([columns["dp_rank"].astype(np.int64), columns["stage"].astype(np.int64)])
    worker = np.unique(workers, axis=1, return_inverse=True)[1].ravel()
    num_workers = int(worker.max()) + 1
    computes = np.isin(columns["optype"].astype(np.str_), list(COMPUTE))
    counts = np.bincount(place[computes] * num_workers + worker[computes], minlength=len(steps) * num_workers)
    # Up to half of the steps may be there twice.
    middle = (len(steps) - 1) // 2
    usual = np.sort(counts.reshape(len(steps), num_workers), axis=0)[middle]
    order = np.lexsort((start, place))
    borders = np.searchsorted(place[order], np.arange(1, len(steps)))
    runs = np.split(order, borders)
    usual_seconds = sorted(float(end[rows].max() - start[rows[0]]) for rows in runs)[middle]
    earlier, repeated = np.zeros(len(start), dtype=np.bool_), []
    for number, rows in enumerate(runs):
        waits = start[rows[1:]] - np.maximum.accumulate(end[rows])[:-1]
        begins = np.flatnonzero(waits > usual_seconds) + 1
        if not len(begins):
            continue
        last = rows[begins[-1] :]
        own = np.bincount(worker[last][computes[last]], minlength=num_workers)
        if (own == usual).all():
            earlier[rows[: begins[-1]]] = True
            repeated.append(int(steps[number]))
    return earlier, repeated
