"""A closed form that a 1F1B pipeline with unequal stages never beats, and seldom misses by more than a thousandth.

Stage s gets its first micro-batch when those before it have forwarded it, and the iteration ends when they have its
last gradient: sum of their seconds. In between it works m times, and is idle twice: while its first micro-batch
travels to the end and back, of which it can fill as many forwards as 1F1B lets it run ahead, and in the same way at the
end with backwards. So seconds after a slow stage count twice, and those before it once.
"""

import math
from collections.abc import Sequence


class PipelineBound:
    """Seconds that a 1F1B pipeline takes at least, whatever its stages take.

    Args:
        num_stages: At least 1.
        forward_part: The part of a stage's seconds that is forward; the largest where stages differ in it.
        backward_part: The part that is backward, in the same way.
        num_micro_batches: Of the pipeline, at least 1.
        transfer_seconds: Per transfer between stages, at least.
    """

    def __init__(
        self,
        num_stages: int,
        forward_part: float,
        backward_part: float,
        num_micro_batches: int,
        transfer_seconds: float,
    ) -> None:
        self.round_trip, self._num_micro_batches = 2.0 * transfer_seconds, num_micro_batches
        self._travel = self.round_trip * (num_stages - 1)
        # Of each stage, how much of its own seconds it can fill each of its two waits with.
        ahead = num_micro_batches - 1
        self._fills = [
            (left * forward_part, left * backward_part)
            if left < ahead
            else (ahead * min(forward_part, backward_part), math.inf)
            for left in range(num_stages - 1, -1, -1)
        ]

    def seconds(self, stage_seconds: Sequence[float], limit: float = math.inf) -> tuple[float, int]:
        """(Seconds of the iteration, the stage that says so).

        Args:
            stage_seconds: Of one micro-batch in each stage, forward and backward together.
            limit: Once it takes longer than that, by how much does not matter.
        """
        count, round_trip = self._num_micro_batches, self.round_trip
        before, after = 0.0, sum(stage_seconds) + self._travel
        longest, slowest = 0.0, 0
        for s, (seconds, (forwards, backwards)) in enumerate(zip(stage_seconds, self._fills, strict=True)):
            after -= seconds
            least = before + count * seconds
            idle = after - forwards * seconds
            if idle > 0.0:
                least += idle
            idle = after - backwards * seconds
            if idle > 0.0:
                least += idle
            if least > longest:
                longest, slowest = least, s
                if least > limit:
                    break
            before += seconds + round_trip
            after -= round_trip
        return longest, slowest

    def of_stage(self, stage: int, seconds: float, before: float, after: float) -> float:
        """What one stage says of the iteration's seconds.

        Args:
            stage: Its number.
            seconds: Of one micro-batch in it, forward and backward together.
            before: Seconds of the stages before it, transfers both ways included.
            after: The same of the stages after it.
        """
        forwards, backwards = self._fills[stage]
        least = before + self._num_micro_batches * seconds
        if (idle := after - forwards * seconds) > 0.0:
            least += idle
        if (idle := after - backwards * seconds) > 0.0:
            least += idle
        return least
