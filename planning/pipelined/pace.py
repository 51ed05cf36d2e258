"""How fast replicas of some stages are: how much they do in which time, and which further shard might make it more."""

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.layout import Stage
from evenkeel.numeric.compiled import compiled
from evenkeel.planning.pipelined.pipeline_bound import pipeline_bound
from evenkeel.planning.situation import Situation

_LESS, _MORE = 1.0 - 1e-9, 1.0 + 1e-9
_BOUNDED = "1f1b"
"""The schedule for which there is a closed form."""
_Floats = npt.NDArray[np.float64]


class Pace:
    """What replicas of some stages can do; what was asked once is known.

    Args:
        situation: Who is alive, and how fast.
        stages: Of the replica.
        schedule: Its name.
    """

    def __init__(self, situation: Situation, stages: tuple[Stage, ...], schedule: str) -> None:
        self._situation, self.stages, self._schedule = situation, stages, schedule
        parts = situation.parts(stages, _BOUNDED)
        self._parts = parts[:, 0] + parts[:, 1]
        self.slope = float(self._parts.max())
        least, most = situation.cost.forward_parts
        self._pipeline = most, 1.0 - least, situation.cost.workload.transfer_seconds
        self._known: dict[int, float] = {}
        self._shards: tuple[_Floats, _Floats] | None = None

    def seconds(self, quota: int) -> float:
        """Pipeline seconds of a quota."""
        found = self._known.get(quota)
        if found is None:
            found = self._known[quota] = self._situation.makespan(self.stages, quota, self._schedule)
        return found

    def is_within(self, quota: int, seconds: float) -> bool:
        """Whether a quota is done within some seconds."""
        if quota <= 0:
            return True
        if quota > int(seconds / self.slope):
            return False
        least = self._situation.least_makespan(self._parts, quota, self._schedule, seconds)
        return least <= seconds >= self.seconds(quota)

    def within(self, seconds: float) -> int:
        """The largest quota done within some seconds, at most one more than the slowest stage alone could do."""
        most = int(seconds / self.slope)
        if self._schedule == _BOUNDED:
            most = _most_within(self._parts, most, *self._pipeline, seconds)
        # The closed form is seldom wrong by a micro-batch.
        if self.seconds(most) <= seconds:
            return most
        return max(0, bisect_right(range(most), seconds, key=self.seconds) - 1)

    def least_seconds(self, quota: int, seconds: float, speed: float) -> list[float]:
        """For each stage what a quota takes at least with one more shard in it, however it is cut.

        Args:
            quota: Micro-batches.
            seconds: Once it takes longer than that, by how much does not matter.
            speed: Throughput of the shard.
        """
        if quota <= 0:
            return [0.0] * len(self.stages)
        if self._shards is None:
            speeds, cost = self._situation.throughputs, self._situation.cost
            self._shards = (
                np.array([cost.healthy_seconds(stage.first_block, stage.stop_block) for stage in self.stages]),
                np.array([sum([speeds[rank] for rank in stage.ranks]) for stage in self.stages]),
            )
        whole, rates = self._shards
        is_bounded = self._schedule == _BOUNDED
        least = _least_seconds(self._parts, whole / (rates + speed), quota, *self._pipeline, seconds, is_bounded)
        found: list[float] = (least * _LESS).tolist()
        return found


@compiled
def _most_within(
    parts: _Floats, most: int, forward_part: float, backward_part: float, transfer_seconds: float, seconds: float
) -> int:
    """The largest quota up to ``most`` that the closed form has done within some seconds."""
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        least = pipeline_bound(parts, middle, forward_part, backward_part, transfer_seconds, seconds)[0]
        if least * _LESS > seconds:
            high = middle
        else:
            low = middle + 1
    return low - 1


@compiled
def _least_seconds(
    parts: _Floats,
    least: _Floats,
    quota: int,
    forward_part: float,
    backward_part: float,
    transfer_seconds: float,
    seconds: float,
    is_bounded: bool,
) -> _Floats:
    """[stages] seconds that a pipeline takes at least when that one stage takes the least that it can.

    Args:
        parts: [stages] seconds of one micro-batch in each stage.
        least: [stages] what each would take at least with the further shard.
        quota: Micro-batches, at least 1.
        forward_part: This and the next two are those of :class:`Pipeline`.
        backward_part: See there.
        transfer_seconds: See there.
        seconds: Once it takes longer than that, by how much does not matter.
        is_bounded: Whether the closed form holds for the schedule.
    """
    found = np.empty(len(parts))
    slowest = parts.argmax()
    slope, next_slope = parts[slowest], 0.0
    for s in range(len(parts)):
        if s != slowest:
            next_slope = max(next_slope, parts[s])
    faster = parts.copy()
    for s in range(len(parts)):
        found[s] = quota * max(next_slope if s == slowest else slope, least[s])
        if is_bounded and found[s] <= seconds * _MORE:
            faster[s] = least[s]
            found[s] = pipeline_bound(faster, quota, forward_part, backward_part, transfer_seconds, seconds)[0]
            faster[s] = parts[s]
    return found
