"""A closed form that a 1F1B pipeline with unequal stages never beats, and seldom misses by more than a thousandth.

Stage s gets its first micro-batch when those before it have forwarded it, and the iteration ends when they have its
last gradient: sum of their seconds. In between it works m times, and is idle twice: while its first micro-batch
travels to the end and back, of which it can fill as many forwards as 1F1B lets it run ahead, and in the same way at the
end with backwards. So seconds after a slow stage count twice, and those before it once.
"""

import math
from collections.abc import Sequence


def least_one_f_one_b(
    stage_seconds: Sequence[float],
    forward_part: float,
    num_micro_batches: int,
    transfer_seconds: float,
    limit: float = math.inf,
) -> tuple[float, int]:
    """(Seconds that the iteration of a 1F1B pipeline takes at least, the stage that says so).

    Args:
        stage_seconds: Of one micro-batch in each stage, forward and backward together.
        forward_part: The part of them that is forward.
        num_micro_batches: Of the pipeline, at least 1.
        transfer_seconds: Per transfer between stages.
        limit: Once it takes longer than that, by how much does not matter.
    """
    backward_part = 1.0 - forward_part
    ahead, round_trip = num_micro_batches - 1, 2.0 * transfer_seconds
    before, after = 0.0, sum(stage_seconds) + round_trip * (len(stage_seconds) - 1)
    longest, slowest, left = 0.0, 0, len(stage_seconds) - 1
    for s, seconds in enumerate(stage_seconds):
        after -= seconds
        least = before + num_micro_batches * seconds
        if left < ahead:
            idle = after - left * forward_part * seconds
            if idle > 0.0:
                least += idle
            idle = after - left * backward_part * seconds
            if idle > 0.0:
                least += idle
        else:
            idle = after - ahead * seconds * min(forward_part, backward_part)
            if idle > 0.0:
                least += idle
        if least > longest:
            longest, slowest = least, s
            if least > limit:
                break
        before += seconds + round_trip
        after -= round_trip
        left -= 1
    return longest, slowest
