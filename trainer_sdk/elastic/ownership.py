"""Which rank holds which slice of which parameter: it follows from the layout alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from layouts.cut import cut
from layouts.layout import Layout, LayoutError
from trainer_sdk.elastic.parameters import ParameterSpec


@dataclass(frozen=True, slots=True)
class Slice:
    """``[start, stop)`` of a parameter's cut axis."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One rank's part of one parameter.

    Attributes:
        rank: Who holds it.
        replica: Replica it belongs to.
        slice: What is held; may be empty when there are fewer granules than shards.
        contributes: Whether the rank speaks for its replica on this slice. Of the shards that all hold a whole
            tensor, only the first does, so that nothing counts twice.
    """

    rank: int
    replica: int
    slice: Slice
    contributes: bool


class OwnershipMap:
    """The ownership of all parameters under one layout.

    Args:
        specs: The model's parameters.
        layout: Layout.

    Raises:
        LayoutError: A parameter belongs to a block that the layout does not have.
    """

    def __init__(self, specs: Sequence[ParameterSpec], layout: Layout) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.layout = layout
        self._holdings: dict[str, tuple[Holding, ...]] = {spec.name: _holdings(spec, layout) for spec in specs}
        self._by_rank: dict[int, dict[str, Slice]] = {rank: {} for rank in layout.ranks}
        for name, holdings in self._holdings.items():
            for holding in holdings:
                self._by_rank[holding.rank][name] = holding.slice

    def holdings(self, name: str) -> tuple[Holding, ...]:
        """Who holds what of a parameter, replica by replica, shard by shard."""
        return self._holdings[name]

    def held_by(self, rank: int) -> dict[str, Slice]:
        """What a rank holds, by parameter, in the order of the model; empty for a rank without a position."""
        return self._by_rank.get(rank, {})


def _holdings(spec: ParameterSpec, layout: Layout) -> tuple[Holding, ...]:
    if spec.block >= layout.num_blocks:
        raise LayoutError(f"parameter {spec.name} is of block {spec.block}, but the layout has {layout.num_blocks}")
    found = []
    for d, replica in enumerate(layout.replicas):
        stage = next(stage for stage in replica.stages if stage.first_block <= spec.block < stage.stop_block)
        if spec.axis is None:
            whole = Slice(0, spec.cut_size)
            found += [
                Holding(rank=rank, replica=d, slice=whole, contributes=t == 0) for t, rank in enumerate(stage.ranks)
            ]
            continue
        borders = cut(spec.cut_size, spec.granule, stage.shares)
        found += [
            Holding(rank=rank, replica=d, slice=Slice(borders[t], borders[t + 1]), contributes=True)
            for t, rank in enumerate(stage.ranks)
        ]
    return tuple(found)
