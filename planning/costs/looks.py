"""What a planner has looked at once, so that it is not looked at again.

Ids stand for stages, and for tuples of stages and of replicas, whose hashes are long. What an id stands for is kept
with its answer, so that it stays its own.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.layout import Replica, Stage

_Floats = npt.NDArray[np.float64]
_Stages = tuple[Stage, ...]
_Replicas = tuple[Replica, ...]


@dataclass(slots=True, kw_only=True)
class Looks:
    """Answers for one cost model and the same speeds, links and domains, whoever else is there.

    Attributes:
        cuts: Best cuts (:mod:`evenkeel.planning.levers.balance.tensor_width`), by blocks, shares and speeds.
        fitted: Stages with their best cuts, by stage.
        by_stage: Seconds of a micro-batch as in ``by_speeds``, by stage and schedule.
        by_speeds: Seconds of a micro-batch: forward and both parts of a backward, by blocks, shares and speeds.
        borders: [stages - 1] seconds of transfers, by the number of stages.
        parts: [stages, 3] seconds of a micro-batch, by stages and schedule.
        makespans: Pipeline seconds, by stages, quota and schedule.
        placed: Where further shards went best (:mod:`evenkeel.planning.levers.standby`).
        peaks: Bytes of replicas (:mod:`evenkeel.planning.costs.memory`).
        healthy: Seconds of the healthy full shape, by schedule.
        home_activations: Most activations that a stage of the full shape holds at a time.
        most_blocks: Blocks that a plan may give a device of its own accord.
    """

    cuts: dict[object, tuple[tuple[int, ...], tuple[int, ...]] | None] = field(default_factory=dict)
    fitted: dict[int, tuple[Stage, Stage]] = field(default_factory=dict)
    by_stage: dict[tuple[int, str], tuple[Stage, tuple[float, float, float]]] = field(default_factory=dict)
    by_speeds: dict[object, tuple[float, float, float]] = field(default_factory=dict)
    borders: dict[int, _Floats] = field(default_factory=dict)
    parts: dict[tuple[int, str], tuple[_Stages, _Floats]] = field(default_factory=dict)
    makespans: dict[tuple[int, int, str], tuple[_Stages, float]] = field(default_factory=dict)
    placed: dict[tuple[int, str, int], tuple[_Replicas, tuple[float, _Replicas] | None]] = field(default_factory=dict)
    peaks: dict[tuple[int, int, str], tuple[Replica, float]] = field(default_factory=dict)
    healthy: dict[str, float] = field(default_factory=dict)
    home_activations: float | None = None
    most_blocks: float | None = None
