"""The exchange of gradients between replicas: by how many there are, and how much of the model a device holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from evenkeel.layouts.cut import cut
from evenkeel.layouts.layout import Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.traffic import ring_part


@dataclass(frozen=True, slots=True, eq=False)
class GradientExchange:
    """What the exchange takes under any layout: a ring all-reduce among all replicas that hides behind nothing.

    Attributes:
        model: Gradients are as large as its parameters; blocks are taken to be alike where no size is known.
        pair_seconds: Between two devices that each hold the whole model; 0 = not known.
    """

    model: ModelSpec
    pair_seconds: float
    _held: dict[tuple[int, int, tuple[int, ...]], float] = field(default_factory=dict, init=False, repr=False)

    def seconds(self, replicas: Sequence[Sequence[Stage | None]]) -> float:
        """Seconds among these replicas: those of the device that holds most of the model.

        Args:
            replicas: Stages of each replica; None where nobody is.
        """
        if not self.pair_seconds or len(replicas) < 2:
            return 0.0
        held: dict[tuple[int, ...], float] = {}
        for stages in replicas:
            for stage in filter(None, stages):
                held[stage.ranks] = held.get(stage.ranks, 0.0) + self._part(stage)
        return self.pair_seconds * ring_part(len(replicas)) * max(held.values(), default=0.0)

    def at_least(self, num_devices: Sequence[int]) -> float:
        """Seconds that :meth:`seconds` does not get below, whatever stages replicas of so many devices have."""
        return self.pair_seconds * ring_part(len(num_devices)) / min(num_devices)

    def _part(self, stage: Stage) -> float:
        """The part of the model that the largest shard of a stage is."""
        key = stage.first_block, stage.stop_block, stage.shares
        found = self._held.get(key)
        if found is None:
            blocks = self.model.blocks
            sizes = [block.parameter_bytes for block in blocks]
            if not any(sizes):
                sizes = [1] * len(blocks)
            parts = {width: _largest_part(width, stage.shares) for width in {block.max_width for block in blocks}}
            here = range(stage.first_block, stage.stop_block)
            found = self._held[key] = sum([sizes[b] * parts[blocks[b].max_width] for b in here]) / sum(sizes)
        return found


def _largest_part(max_width: int, shares: tuple[int, ...]) -> float:
    """The part of a block that its largest shard is; all of one that is not sharded."""
    if max_width <= 1:
        return 1.0
    return max([stop - first for first, stop in pairwise(cut(max_width, 1, shares))]) / max_width
