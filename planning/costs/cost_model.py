"""What a job's iterations are made of, and what stages take of it: times from model and devices.

A stage computes a micro-batch block by block. Tensor-parallel collectives inside each block make the shards wait for
the slowest of them, so a block takes the maximum over its shards of (granules held / all granules) / throughput, with
the same rounding rule as the engine (:func:`evenkeel.layouts.cut.cut`). The collectives' own time comes on top, per
sharded block and by how many shards take part; that of gradients comes after the pipelines
(:mod:`evenkeel.planning.costs.gradients`). Not modelled: shared links, memory limits. Whole iterations are predicted by
:mod:`evenkeel.planning.costs.measured.replay`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.cut import shard_parts
from evenkeel.layouts.layout import Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.schedules import SPLIT_BACKWARD
from evenkeel.layouts.ranks.traffic import ring_part
from evenkeel.planning.costs.gradients import GradientExchange
from evenkeel.planning.costs.measured.recent import RecentIteration
from evenkeel.planning.costs.usual_shape import UsualShape
from evenkeel.planning.pipelined.makespan import pipeline_makespan

_MAX_PREFIXES = 16384
BY_ORDERS = "zb-h1"
"""Orders have both parts of a backward, as this schedule has."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the job's iterations are made of, as the detector measured it.

    Attributes:
        seconds_per_flop: Of a healthy device.
        tokens: Mean tokens N of a micro-batch.
        sum_of_squares: Mean sum of squared document lengths of a micro-batch.
        fixed_seconds: Per iteration, under every layout: optimizer, vote, input.
        transfer_seconds: Per transfer between stages.
        transfers_in_line: How many of them followed one another in the iterations that they were told from: the more,
            the better are they known; 0 = not told from iterations.
        exchange_seconds: Tensor collectives of one block of two shards, per micro-batch of mean size, forward and
            backward together; of more shards they take :func:`evenkeel.layouts.ranks.traffic.ring_part` of it.
        gradient_seconds: Exchange of the gradients of a whole model between two devices that hold all of it; of devices
            that hold less, and among more replicas, see :mod:`evenkeel.planning.costs.gradients`. 0 = not known.
        recent: Newest iterations under the layout in force; none where their micro-batches are not known.
        measured: False for the assumed workload of a job that has no profile yet: only ratios mean anything then.
    """

    seconds_per_flop: float
    tokens: float
    sum_of_squares: float
    fixed_seconds: float = 0.0
    transfer_seconds: float = 0.0
    transfers_in_line: float = 0.0
    exchange_seconds: float = 0.0
    gradient_seconds: float = 0.0
    recent: tuple[RecentIteration, ...] = ()
    measured: bool = True

    def __post_init__(self) -> None:
        for name in [each.name for each in fields(self) if each.type is float]:
            value, is_positive = getattr(self, name), name in ("seconds_per_flop", "tokens")
            if not (math.isfinite(value) and value >= 0.0 and (value or not is_positive)):
                raise ValueError(f"{name} is {value}: finite, and {'above' if is_positive else 'at least'} 0")
        sizes = {len(one.tokens) for one in self.recent}
        if len(sizes) > 1:
            raise ValueError(f"recent iterations of {sorted(sizes)} micro-batches: a job's have equally many")


ASSUMED_WORKLOAD = Workload(seconds_per_flop=1e-9, tokens=1024.0, sum_of_squares=1024.0 * 256.0, measured=False)
"""Before the first profile: its ratios are typical of packed text, its seconds mean nothing."""


@lru_cache(maxsize=65536)
def block_slowness(max_width: int, shares: tuple[int, ...], speeds: tuple[float, ...]) -> float:
    """Seconds of a block on these shards per second of the whole block on one healthy device.

    A block of ``max_width`` 1 is not sharded: every shard computes all of it.
    """
    return max([part / speed for part, speed in zip(shard_parts(max_width, shares), speeds, strict=True)])


@dataclass(frozen=True, eq=False)
class CostModel:
    """What stages of one job take, and what comes on top of its slowest pipeline.

    Attributes:
        model: The model's blocks.
        workload: What iterations are made of.
        correction: Measured over predicted seconds of the newest measured epoch; multiplies every prediction.
        usual: Makes stages that are wider than its own slower; None = they are as fast as their shards.
    """

    model: ModelSpec
    workload: Workload
    correction: float = 1.0
    usual: UsualShape | None = None
    _running: dict[tuple[tuple[int, ...], tuple[float, ...]], _Floats] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def gradients(self) -> GradientExchange:
        """What their exchange takes."""
        return GradientExchange(self.model, self.workload.gradient_seconds)

    @cached_property
    def main_width(self) -> int:
        """``max_width`` of the blocks that take most of the time: the granules in which widths are worth choosing."""
        seconds = {width: float(rates.sum(axis=1) @ self._sizes[0]) for width, rates in self._rates.items()}
        return max(seconds, key=lambda width: (seconds[width], width))

    @cached_property
    def forward_part(self) -> float:
        """The part of a micro-batch's seconds that is forward, over all blocks."""
        forward, backward, _ = self._sizes @ self.rates_to_block((1,), (1.0,))[:, -1]
        return float(forward / (forward + backward))

    @cached_property
    def forward_parts(self) -> tuple[float, float]:
        """The least and the largest part of a stage's seconds that can be forward, whatever blocks it has."""
        parts = {1.0 / (1.0 + cost.backward_multiple) for cost in self.model.blocks}
        if self.workload.exchange_seconds:
            parts.add(0.5)
        return min(parts), max(parts)

    @cached_property
    def _rates(self) -> dict[int, _Floats]:
        """Of the blocks of each ``max_width``, [5, blocks] seconds on one healthy device; 0 of the others.

        Forward per token and per squared length, backward in the same way, and the weights' part of it per token.
        """
        blocks = self.model.blocks
        forward = np.array([(one.forward_flops_per_token, one.forward_flops_per_squared_length) for one in blocks]).T
        backward = forward * np.array([one.backward_multiple for one in blocks])
        weights = np.array([one.weight_flops(1.0, 0.0) for one in blocks])
        rates = np.vstack((forward, backward, weights)) * self.workload.seconds_per_flop
        widths = np.array([one.max_width for one in blocks])
        return {width: rates * (widths == width) for width in set(widths.tolist())}

    @cached_property
    def _sizes(self) -> _Floats:
        """[3, 5]: makes seconds of rates, for a micro-batch of mean size: forward, backward, and its weights' part."""
        tokens, squares = self.workload.tokens, self.workload.sum_of_squares
        return np.array([[tokens, squares, 0.0, 0.0, 0.0], [0.0, 0.0, tokens, squares, 0.0], [0.0] * 4 + [tokens]])

    @cached_property
    def _exchange(self) -> _Floats:
        """[blocks + 1] seconds of the tensor collectives of two shards in blocks 0 to b - 1, both ways."""
        sharded = [cost.max_width > 1 for cost in self.model.blocks]
        return np.cumsum([0.0, *sharded]) * self.workload.exchange_seconds

    def slowdown(self, num_shards: int) -> float:
        """What a stage of so many shards is taken to be slower by."""
        return 1.0 if self.usual is None else self.usual.slowdown(num_shards)

    def healthy_seconds(self, first_block: int, stop_block: int) -> float:
        """Seconds of one micro-batch of blocks on one healthy device, forward and backward together."""
        return self.range_seconds(first_block, stop_block, (1,), (1.0,))

    def exchange_seconds(self, stage: Stage) -> float:
        """Seconds of a stage's tensor collectives per micro-batch, forward and backward together."""
        return ring_part(len(stage.shares)) * float(
            self._exchange[stage.stop_block] - self._exchange[stage.first_block]
        )

    def rates_to_block(self, shares: tuple[int, ...], speeds: tuple[float, ...]) -> _Floats:
        """``[:, b]``: what blocks 0 to b - 1 cut over shards of these speeds take; what collectives carry are tokens.

        Seconds forward per token and per squared length, backward in the same way, and of the weights' part of it per
        token. The same array for the same question; do not change it.
        """
        found = self._running.get((shares, speeds))
        if found is None:
            if len(self._running) >= _MAX_PREFIXES:
                self._running.clear()
            slowdown = self.slowdown(len(shares))
            found = np.zeros((5, len(self.model.blocks) + 1))
            for width, rates in self._rates.items():
                found[:, 1:] += rates * (block_slowness(width, shares, speeds) * slowdown)
            np.cumsum(found, axis=1, out=found)
            found[0:4:2] += self._exchange * (0.5 * ring_part(len(shares)) / self.workload.tokens)
            self._running[shares, speeds] = found
        return found

    def seconds_to_block(self, shares: tuple[int, ...], speeds: tuple[float, ...]) -> _Floats:
        """``[b]``: seconds of one micro-batch of blocks 0 to b - 1, both ways, cut over shards of these speeds."""
        found: _Floats = (self._sizes[0] + self._sizes[1]) @ self.rates_to_block(shares, speeds)
        return found

    def range_seconds(
        self, first_block: int, stop_block: int, shares: tuple[int, ...], speeds: tuple[float, ...]
    ) -> float:
        """Seconds of one micro-batch of blocks cut over shards of these speeds, both ways."""
        to_block = self.seconds_to_block(shares, speeds)
        return float(to_block[stop_block] - to_block[first_block])

    def rates(self, stage: Stage, throughputs: Mapping[int, float]) -> _Floats:
        """What a stage takes, as :meth:`rates_to_block` tells it.

        Raises:
            ValueError: A rank of the stage is dead.
        """
        speeds = tuple([throughputs.get(rank, 0.0) for rank in stage.ranks])
        if min(speeds) <= 0.0:
            raise ValueError(f"stage of ranks {stage.ranks} has speeds {speeds}: leave dead ranks out")
        to_block = self.rates_to_block(stage.shares, speeds)
        found: _Floats = to_block[:, stage.stop_block] - to_block[:, stage.first_block]
        return found

    def parts(self, stage: Stage, throughputs: Mapping[int, float], schedule: str) -> tuple[float, float, float]:
        """Seconds of one micro-batch of a stage: forward, and its backward in two parts where the schedule has two.

        Raises:
            ValueError: A rank of the stage is dead.
        """
        forward, backward, weight = (self._sizes @ self.rates(stage, throughputs)).tolist()
        return (forward, backward - weight, weight) if schedule in SPLIT_BACKWARD else (forward, backward, 0.0)

    def block_parts(self, schedule: str) -> _Floats:
        """[blocks, 3]: :meth:`parts` of each block alone on one healthy device."""
        alone = [Stage(first_block=b, stop_block=b + 1, ranks=(0,), shares=(1,)) for b in range(len(self.model.blocks))]
        return np.array([self.parts(stage, {0: 1.0}, schedule) for stage in alone])

    def makespan(
        self, stages: tuple[Stage, ...], num_micro_batches: int, throughputs: Mapping[int, float], schedule: str
    ) -> float:
        """Seconds of one replica's pipeline with a quota, without the fixed part and the correction."""
        parts = np.array([self.parts(stage, throughputs, schedule) for stage in stages])
        return pipeline_makespan(parts, num_micro_batches, self.border_seconds(len(stages)))

    def border_seconds(self, num_stages: int) -> _Floats:
        """[stages - 1] seconds of a transfer over each border of a pipeline."""
        return np.full(num_stages - 1, self.workload.transfer_seconds)

    def total(self, makespan_seconds: float, gradient_seconds: float = 0.0) -> float:
        """Seconds per iteration when the slowest pipeline takes ``makespan_seconds``, with the exchange after it."""
        return (makespan_seconds + gradient_seconds + self.workload.fixed_seconds) * self.correction
