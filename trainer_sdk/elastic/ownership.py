"""Which rank holds which slice of which parameter: it follows from the layout alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from layouts.cut import cut
from layouts.layout import Layout, LayoutError, Stage
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


class Stretch(NamedTuple):
    """``[start, stop)`` of a parameter that no holder's border cuts.

    Attributes:
        start: First unit of the cut axis.
        stop: One past the last.
        ranks: All holders, ascending.
        contributors: Those that speak for their replica.
    """

    start: int
    stop: int
    ranks: tuple[int, ...]
    contributors: frozenset[int]


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
        self._holdings: dict[str, tuple[Holding, ...]] = {}
        self._stretches: dict[int, tuple[Stretch, ...]] = {}
        # Thousands of ranks times hundreds of parameters, of which few are cut in a way of their own.
        stages_of: dict[int, tuple[Stage, ...]] = {}
        made: dict[tuple[object, ...], tuple[Holding, ...]] = {}
        for spec in specs:
            if spec.block not in stages_of:
                stages_of[spec.block] = _stages_of(spec, layout)
            stages = stages_of[spec.block]
            # A stage is told from the others of its replica by where it begins.
            way = (*[stage.first_block for stage in stages], spec.axis is None, spec.cut_size, spec.granule)
            if way not in made:
                made[way] = _holdings(spec, stages)
            self._holdings[spec.name] = made[way]

    def holdings(self, name: str) -> tuple[Holding, ...]:
        """Who holds what of a parameter, replica by replica, shard by shard.

        Parameters that are cut alike give the same object.
        """
        return self._holdings[name]

    def stretches(self, name: str) -> tuple[Stretch, ...]:
        """A parameter cut at the borders of all that hold something of it."""
        holdings = self._holdings[name]
        if id(holdings) not in self._stretches:
            self._stretches[id(holdings)] = _stretches(holdings)
        return self._stretches[id(holdings)]

    def held_by(self, rank: int) -> dict[str, Slice]:
        """What a rank holds, by parameter, in the order of the model; empty for a rank without a position."""
        mine: dict[int, Slice | None] = {}
        for holdings in self._holdings.values():
            if id(holdings) not in mine:
                mine[id(holdings)] = next((held.slice for held in holdings if held.rank == rank), None)
        found = ((name, mine[id(holdings)]) for name, holdings in self._holdings.items())
        return {name: held for name, held in found if held is not None}


def _stages_of(spec: ParameterSpec, layout: Layout) -> tuple[Stage, ...]:
    """The stage of each replica that has the parameter's block."""
    if spec.block >= layout.num_blocks:
        raise LayoutError(f"parameter {spec.name} is of block {spec.block}, but the layout has {layout.num_blocks}")
    return tuple(
        [
            next(stage for stage in replica.stages if stage.first_block <= spec.block < stage.stop_block)
            for replica in layout.replicas
        ]
    )


def _holdings(spec: ParameterSpec, stages: Sequence[Stage]) -> tuple[Holding, ...]:
    found = []
    for d, stage in enumerate(stages):
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


def _stretches(holdings: Sequence[Holding]) -> tuple[Stretch, ...]:
    held = [one for one in holdings if len(one.slice)]
    found = []
    for start, stop in pairwise(sorted({border for one in held for border in (one.slice.start, one.slice.stop)})):
        here = [one for one in held if one.slice.start <= start and stop <= one.slice.stop]
        ranks = tuple(sorted([one.rank for one in here]))
        found.append(Stretch(start, stop, ranks, frozenset([one.rank for one in here if one.contributes])))
    return tuple(found)
