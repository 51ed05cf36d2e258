"""A closed form that a pipeline with unequal stages never beats, and that 1F1B seldom misses by more than a thousandth.

Stage s gets its first micro-batch when those before it have forwarded it, and the iteration ends when they have its
last gradient: sum of their seconds. In between it works m times, and is idle twice: while its first micro-batch
travels to the end and back, of which it can fill as many forwards as 1F1B lets it run ahead, and in the same way at the
end with backwards. So seconds after a slow stage count twice, and those before it once.

With a split backward (ZB-H1) that holds with one change. No stage hands on a gradient later for the weights' parts that
it has left by then: those of its last s + 1 micro-batches, if it is stage s. When it has handed on its last one, the
stages before it still have theirs to compute, and the first one its last weights' part.
"""

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Floats = npt.NDArray[np.float64]


@compiled
def pipeline_bound(
    parts: Floats,
    num_later: int,
    later_seconds: float,
    num_micro_batches: int,
    forward_part: float,
    backward_part: float,
    transfer_seconds: float,
    limit: float,
) -> tuple[float, int]:
    """(Seconds that a pipeline takes at least by what its first stages say, the stage that says so).

    Args:
        parts: [stages, 3] seconds of a micro-batch in each of them: forward, backward up to the gradient that is sent
            on, the rest of the backward. Without such a rest the first two may be told in one.
        num_later: How many stages come after these.
        later_seconds: Of a micro-batch in those up to the gradient that each sends on, at least; without transfers.
        num_micro_batches: At least 1.
        forward_part: The part of a stage's seconds that is forward; the largest where stages differ in it.
        backward_part: The part that is backward, in the same way.
        transfer_seconds: Per transfer between stages, at least.
        limit: Once it takes longer than that, by how much does not matter.
    """
    last, quota, round_trip = len(parts) + num_later - 1, num_micro_batches, 2.0 * transfer_seconds
    after, ahead, back, longest, slowest = later_seconds + round_trip * last, 0.0, 0.0, 0.0, 0
    for s in range(len(parts)):
        after += parts[s, 0] + parts[s, 1]
    for s in range(len(parts)):
        after -= parts[s, 0] + parts[s, 1]
        own = parts[s, 0] + parts[s, 1] + parts[s, 2]
        least = least_beside(parts[0, 2], ahead, back, min(quota, s + 1) * parts[s, 2]) + quota * own
        # How much of its own seconds it can fill each of its two waits with.
        if last - s < quota - 1:
            least += max(0.0, after - (last - s) * forward_part * own)
            least += max(0.0, after - (last - s) * backward_part * own)
        else:
            least += max(0.0, after - (quota - 1) * min(forward_part, backward_part) * own)
        if least > longest:
            longest, slowest = least, s
            if least > limit:
                break
        ahead += parts[s, 0] + transfer_seconds
        back += parts[s, 1] + transfer_seconds
        after -= round_trip
    return longest, slowest


@compiled
def least_beside(first_weights: float, ahead: float, back: float, put_off: float) -> float:
    """Seconds that a stage's pipeline takes at least beyond its own work, for the stages before it.

    Args:
        first_weights: Seconds of the weights' part of a micro-batch in the first stage.
        ahead: Seconds of a micro-batch forward in the stages before it, with transfers.
        back: The same of its way back.
        put_off: Seconds of weights' parts that the stage itself may have left by then.
    """
    seconds: float = ahead + max(0.0, back + first_weights - put_off)
    return seconds
