"""How fast replicas of some stages are: how much they do in which time, and which further shard might make it more."""

from bisect import bisect_right
from functools import cached_property

from evenkeel.layouts.layout import Stage
from evenkeel.planning.situation import Situation

_LESS = 1.0 - 1e-9
_BOUNDED = "1f1b"
"""A schedule whose stages have the seconds of a micro-batch in one piece."""


class Pace:
    """What replicas of some stages can do; what was asked once is known.

    Args:
        situation: Who is alive, and how fast.
        stages: Of the replica.
        schedule: Its name.
    """

    def __init__(self, situation: Situation, stages: tuple[Stage, ...], schedule: str) -> None:
        self._situation, self.stages, self._schedule = situation, stages, schedule
        self._parts = situation.parts(stages, _BOUNDED).sum(axis=1)
        self.slope = float(self._parts.max())

    def seconds(self, quota: int) -> float:
        """Pipeline seconds of a quota."""
        return self._situation.makespan(self.stages, quota, self._schedule)

    def is_within(self, quota: int, seconds: float) -> bool:
        """Whether a quota is done within some seconds."""
        return quota <= 0 or (quota <= int(seconds / self.slope) and self.seconds(quota) <= seconds)

    def within(self, seconds: float) -> int:
        """The largest quota done within some seconds."""
        most = int(seconds / self.slope)
        return max(0, bisect_right(range(most + 1), seconds, key=self.seconds) - 1)

    def least_seconds(self, quota: int, seconds: float, speed: float) -> list[float]:
        """For each stage what a quota takes at least with one more shard in it, however it is cut.

        Args:
            quota: Micro-batches; none where it is below 0.
            seconds: Once it takes longer than that, by how much does not matter.
            speed: Throughput of the shard.
        """
        quota, found = max(0, quota), []
        for s, (whole, rate) in enumerate(self._shards):
            faster = self._parts.copy()
            faster[s] = whole / (rate + speed)
            least = self._situation.least_makespan(faster, quota, self._schedule, seconds)
            found.append(max(least, _LESS * quota * float(faster.max())))
        return found

    @cached_property
    def _shards(self) -> list[tuple[float, float]]:
        """Of each stage: seconds of a micro-batch on one healthy device, and the speeds of its shards together."""
        speeds, seconds = self._situation.throughputs, self._situation.cost.healthy_seconds
        return [
            (seconds(stage.first_block, stage.stop_block), sum([speeds[rank] for rank in stage.ranks]))
            for stage in self.stages
        ]
