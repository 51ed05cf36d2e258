"""Which rank holds which slice of which parameter: it follows from the layout alone."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from evenkeel.layouts.cut import cut
from evenkeel.layouts.layout import Layout, LayoutError, Stage
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec


@dataclass(frozen=True, slots=True)
class Slice:
    """``[start, stop)`` of a parameter's cut axis."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def within(self, start: int, stop: int) -> "Slice":
        """The part of it that lies in ``[start, stop)``; empty where there is none."""
        first = max(self.start, start)
        return Slice(first, max(first, min(self.stop, stop)))


class Stretch(NamedTuple):
    """``[start, stop)`` of a parameter that no holder's border cuts.

    Attributes:
        start: First unit of the cut axis.
        stop: One past the last.
        ranks: All holders, ascending.
        contributors: Those that speak for their replica: of shards that all hold a whole tensor only the first does, so
            that nothing counts twice.
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
        # Thousands of ranks times hundreds of parameters, of which few are cut in a way of their own.
        stages_of = _stages_by_block(specs, layout)
        ways: dict[tuple[object, ...], _Way] = {}
        self._ways: dict[str, _Way] = {}
        for spec in specs:
            stages = stages_of[spec.block]
            way = (id(stages), spec.axis is None, spec.cut_size, spec.granule)
            self._ways[spec.name] = ways.setdefault(way, _Way(spec, stages))

    def holders(self, name: str) -> dict[int, Slice]:
        """What each rank holds of a parameter, replica by replica, shard by shard; empty slices where shards are many.

        Parameters that are cut alike give the same object.
        """
        return self._ways[name].holders

    def stretches(self, name: str) -> tuple[Stretch, ...]:
        """A parameter cut at the borders of all that hold something of it; likewise."""
        return self._ways[name].stretches

    def held_by(self, rank: int) -> dict[str, Slice]:
        """What a rank holds, by parameter, in the order of the model; empty for a rank without a position."""
        mine: dict[_Way, Slice | None] = {}
        for way in self._ways.values():
            if way not in mine:
                mine[way] = way.held_by(rank)
        found = ((name, mine[way]) for name, way in self._ways.items())
        return {name: held for name, held in found if held is not None}


class _Way:
    """How some parameters are cut: each replica's stage that has them, and their size; what follows is kept."""

    def __init__(self, spec: ParameterSpec, stages: Sequence[Stage]) -> None:
        self._spec = spec
        self._stages = stages

    @cached_property
    def holders(self) -> dict[int, Slice]:
        return {
            rank: held
            for stage in self._stages
            for rank, held in zip(stage.ranks, self._slices[stage.shares], strict=True)
        }

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        borders = {border for held in self._slices.values() for one in held for border in (one.start, one.stop)}
        found = []
        for start, stop in pairwise(sorted(borders)):
            here = {
                shares: [t for t, one in enumerate(held) if one.start <= start and stop <= one.stop]
                for shares, held in self._slices.items()
            }
            ranks = [stage.ranks[t] for stage in self._stages for t in here[stage.shares]]
            # Of shards that hold all of it the first speaks, and else there is one.
            contributors = [stage.ranks[here[stage.shares][0]] for stage in self._stages]
            found.append(Stretch(start, stop, tuple(sorted(ranks)), frozenset(contributors)))
        return tuple(found)

    def held_by(self, rank: int) -> Slice | None:
        """What a rank holds; None when it does not have the block."""
        stage = next((stage for stage in self._stages if rank in stage.ranks), None)
        return None if stage is None else self._slices[stage.shares][stage.ranks.index(rank)]

    @cached_property
    def _slices(self) -> dict[tuple[int, ...], tuple[Slice, ...]]:
        """What each shard holds, by the shares of its stage."""
        spec = self._spec
        found: dict[tuple[int, ...], tuple[Slice, ...]] = {}
        for shares in {stage.shares for stage in self._stages}:
            if spec.axis is None:
                found[shares] = (Slice(0, spec.cut_size),) * len(shares)
            else:
                borders = cut(spec.cut_size, spec.granule, shares)
                found[shares] = tuple([Slice(start, stop) for start, stop in pairwise(borders)])
        return found


def _stages_by_block(specs: Sequence[ParameterSpec], layout: Layout) -> dict[int, tuple[Stage, ...]]:
    """The stage of each replica that has a block; the same object for blocks of which that is the same."""
    starts = [tuple([stage.first_block for stage in replica.stages]) for replica in layout.replicas]
    made: dict[tuple[int, ...], tuple[Stage, ...]] = {}
    found: dict[int, tuple[Stage, ...]] = {}
    for spec in specs:
        if spec.block in found:
            continue
        if spec.block >= layout.num_blocks:
            raise LayoutError(f"parameter {spec.name} is of block {spec.block}, but the layout has {layout.num_blocks}")
        place = {split: bisect_right(split, spec.block) - 1 for split in set(starts)}
        places = tuple([place[split] for split in starts])
        if places not in made:
            made[places] = tuple([replica.stages[s] for replica, s in zip(layout.replicas, places, strict=True)])
        found[spec.block] = made[places]
    return found
