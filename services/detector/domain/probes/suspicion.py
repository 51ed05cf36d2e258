"""What a probe is asked for: whose device or link, beside whose, and how much of it. Pure."""

from collections.abc import Callable

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints

SUSPECT_AT = 0.5
"""Of the evidence that a verdict takes."""

USUAL_MATRIX = 256
"""For a job that does not say what its work costs."""

PROBE_SECONDS = 0.002
"""One product on a healthy device; a suspicion costs three, or the time of six on a device at half speed."""

SMALLEST_MATRIX, LARGEST_MATRIX = 64, 4096


def matrix_size_for(seconds_per_flop: float) -> int:
    """Side of the matrices whose product takes ``PROBE_SECONDS`` on a healthy device; its speed may be NaN: unknown."""
    side = (PROBE_SECONDS / (2.0 * seconds_per_flop)) ** (1.0 / 3.0) if seconds_per_flop > 0.0 else USUAL_MATRIX
    return round(min(max(side, SMALLEST_MATRIX), LARGEST_MATRIX))


def choose(
    *, evidence: Floats, ill: Bools, asked: Bools, work_keys: Floats | Ints, able: Callable[[int], Bools] | None = None
) -> tuple[int, int] | None:
    """Whom to probe, and beside whom: entries of the arrays; None when nobody is a suspect, or none could stand beside.

    Args:
        evidence: Against each, as a part of what a verdict takes.
        ill: Called slow already; probed once, if that has not been.
        asked: That has been.
        work_keys: Equal where two do the same work.
        able: Who could stand beside a suspect; anybody else if None.
    """
    wanted = np.where(ill, np.where(asked, 0.0, 1.0), evidence)
    if not len(wanted) or float(wanted.max()) < SUSPECT_AT:
        return None
    suspect = int(np.argmax(wanted))
    healthy = ~ill & (evidence < SUSPECT_AT)
    if able is not None:
        healthy &= able(suspect)
    healthy[suspect] = False
    same = healthy & (work_keys == work_keys[suspect])
    # The least suspicious, of those that do the same work if there are any.
    beside = np.flatnonzero(same if same.any() else healthy)
    return (suspect, int(beside[np.argmin(evidence[beside])])) if len(beside) else None
