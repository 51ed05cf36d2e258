"""The newest so many of what comes one by one."""

from collections.abc import Sequence

import numpy as np

from evenkeel.numeric.arrays import Floats


def with_newest(known: Floats, one: float | Sequence[float] | Floats, most: int) -> Floats:
    """What is known with one more at its end, a number or a row; the oldest goes where there were ``most``.

    A row of another width than those before starts afresh.
    """
    newest = np.asarray(one, dtype=np.float64)[None]
    return np.concatenate([known[1 - most :], newest]) if known.shape[1:] == newest.shape[1:] else newest
