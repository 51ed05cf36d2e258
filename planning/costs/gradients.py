"""The exchange of gradients between replicas: by how many there are, and how much of the model a device holds."""

from collections.abc import Sequence

from evenkeel.layouts.cut import shard_parts
from evenkeel.layouts.layout import Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.ranks.traffic import ring_part


class GradientExchange:
    """What the exchange takes under any layout: ring all-reduces among all that hold a part, which hide behind nothing.

    One shard of each replica holds a part of a block; of a block that is not sharded all shards hold everything, and
    take part.

    Args:
        model: Gradients are as large as its parameters; blocks are taken to be alike where no size is known.
        pair_seconds: Between two devices that each hold the whole model; 0 = not known.
    """

    def __init__(self, model: ModelSpec, pair_seconds: float) -> None:
        self.pair_seconds, self._blocks = pair_seconds, model.blocks
        sizes = [block.parameter_bytes for block in model.blocks]
        if not any(sizes):
            sizes = [1] * len(sizes)
        self._sizes = [size / sum(sizes) for size in sizes]
        self._whole = [b for b, block in enumerate(model.blocks) if block.max_width <= 1]
        self._held: dict[tuple[int, int, tuple[int, ...]], float] = {}

    def seconds(self, replicas: Sequence[Sequence[Stage | None]]) -> float:
        """Seconds among these replicas: those of the device that has most to exchange.

        Args:
            replicas: Stages of each replica; None where nobody is.
        """
        if not self.pair_seconds:
            return 0.0
        ring, held = ring_part(len(replicas)), dict[tuple[int, ...], float]()
        for stages in replicas:
            for stage in filter(None, stages):
                held[stage.ranks] = held.get(stage.ranks, 0.0) + ring * self._part(stage)
        for b in self._whole:
            holders = [s for stages in replicas for s in stages if s and s.first_block <= b < s.stop_block]
            seconds = self._sizes[b] * ring_part(sum([len(stage.ranks) for stage in holders]))
            for stage in holders:
                held[stage.ranks] += seconds
        return self.pair_seconds * max(held.values(), default=0.0)

    def at_least(self, num_devices: Sequence[int]) -> float:
        """Seconds that :meth:`seconds` does not get below, whatever stages replicas of so many devices have."""
        return self.pair_seconds * ring_part(len(num_devices)) / min(num_devices)

    def _part(self, stage: Stage) -> float:
        """The part of the model that the largest shard of a stage is, without blocks that are not sharded."""
        key = stage.first_block, stage.stop_block, stage.shares
        found = self._held.get(key)
        if found is None:
            blocks = self._blocks
            widths = {block.max_width for block in blocks}
            parts = {width: max(shard_parts(width, stage.shares)) if width > 1 else 0.0 for width in widths}
            here = range(stage.first_block, stage.stop_block)
            found = self._held[key] = sum([self._sizes[b] * parts[blocks[b].max_width] for b in here])
        return found
