"""A closed form that a 1F1B pipeline with unequal stages never beats, and seldom misses by more than a thousandth.

Stage s gets its first micro-batch when those before it have forwarded it, and the iteration ends when they have its
last gradient: sum of their seconds. In between it works m times, and is idle twice: while its first micro-batch
travels to the end and back, of which it can fill as many forwards as 1F1B lets it run ahead, and in the same way at the
end with backwards. So seconds after a slow stage count twice, and those before it once.
"""

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Floats = npt.NDArray[np.float64]


@compiled
def pipeline_bound(
    parts: Floats,
    num_micro_batches: int,
    forward_part: float,
    backward_part: float,
    transfer_seconds: float,
    limit: float,
) -> tuple[float, int]:
    """(Seconds that a 1F1B pipeline takes at least, the stage that says so).

    Args:
        parts: [stages] seconds of one micro-batch in each stage, forward and backward together.
        num_micro_batches: At least 1.
        forward_part: The part of a stage's seconds that is forward; the largest where stages differ in it.
        backward_part: The part that is backward, in the same way.
        transfer_seconds: Per transfer between stages, at least.
        limit: Once it takes longer than that, by how much does not matter.
    """
    num_stages, round_trip = len(parts), 2.0 * transfer_seconds
    after = round_trip * (num_stages - 1)
    for part in parts:
        after += part
    before, longest, slowest = 0.0, 0.0, 0
    for s in range(num_stages):
        after -= parts[s]
        least = claimed(parts[s], before, after, num_stages - 1 - s, num_micro_batches, forward_part, backward_part)
        if least > longest:
            longest, slowest = least, s
            if least > limit:
                break
        before += parts[s] + round_trip
        after -= round_trip
    return longest, slowest


@compiled
def claimed(
    part: float,
    before: float,
    after: float,
    num_later: int,
    num_micro_batches: int,
    forward_part: float,
    backward_part: float,
) -> float:
    """Seconds that a pipeline takes at least by what one stage says.

    Args:
        part: Seconds of one micro-batch in the stage.
        before: The same of all stages before it, transfers both ways included.
        after: The same of all stages after it.
        num_later: How many stages come after it.
        num_micro_batches: This and the next two as in :func:`pipeline_bound`.
        forward_part: See there.
        backward_part: See there.
    """
    ahead = num_micro_batches - 1
    least = before + num_micro_batches * part
    # How much of its own seconds it can fill each of its two waits with.
    if num_later < ahead:
        least += max(0.0, after - num_later * forward_part * part)
        least += max(0.0, after - num_later * backward_part * part)
    else:
        least += max(0.0, after - ahead * min(forward_part, backward_part) * part)
    return least
