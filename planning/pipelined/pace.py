"""How fast replicas of some stages are: how much they do in which time, and which further shard might make it more."""

from bisect import bisect_right

import numpy as np

from evenkeel.layouts.layout import Stage
from evenkeel.planning.situation import Situation

_WHOLE = "1f1b"
"""A schedule whose stages have the seconds of a micro-batch in one piece."""


class Pace:
    """What replicas of some stages can do.

    Args:
        situation: Who is alive, and how fast.
        stages: Of the replica.
        schedule: Its name.
    """

    def __init__(self, situation: Situation, stages: tuple[Stage, ...], schedule: str) -> None:
        self._situation, self._stages, self._schedule = situation, stages, schedule
        self._parts = situation.parts(stages, _WHOLE).sum(axis=1)
        self.slope = float(self._parts.max())

    def seconds(self, quota: int) -> float:
        """Pipeline seconds of a quota."""
        return self._situation.makespan(self._stages, quota, self._schedule)

    def within(self, seconds: float) -> int:
        """The largest quota done within some seconds."""
        most = int(seconds / self.slope)
        return max(0, bisect_right(range(most + 1), seconds, key=self.seconds) - 1)

    def gains(self, quota: int, speed: float) -> list[float]:
        """For each stage how many micro-batches a second more are done with one more shard in it, however it is cut.

        By the form sum + (quota - 1) max of a pipeline's seconds.

        Args:
            quota: Micro-batches, at least 1.
            speed: Throughput of the shard.
        """
        speeds, seconds = self._situation.speeds, self._situation.cost.healthy_seconds
        faster = np.tile(self._parts, (len(self._stages) + 1, 1))  # the last row is the replica as it is
        for s, stage in enumerate(self._stages):
            rate = sum([speeds[rank] for rank in stage.ranks]) + speed
            faster[s, s] = seconds(stage.first_block, stage.stop_block) / rate
        rates = quota / (faster.sum(axis=1) + (quota - 1) * faster.max(axis=1))
        gains: list[float] = (rates[:-1] - rates[-1]).tolist()
        return gains
