"""The parameters cut at every border of a layout: the largest pieces that the same ranks hold whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """``[start, stop)`` of a parameter's cut axis."""

    name: str
    start: int
    stop: int


def extents_of(specs: Sequence[ParameterSpec], layout: Layout) -> Iterator[tuple[Extent, tuple[int, ...]]]:
    """Every extent with the ranks that hold it, ascending, in the order of the model."""
    ownership = OwnershipMap(specs, layout)
    for spec in specs:
        for stretch in ownership.stretches(spec.name):
            yield Extent(name=spec.name, start=stretch.start, stop=stretch.stop), stretch.ranks


def assign_writers(specs: Sequence[ParameterSpec], layout: Layout) -> dict[int, tuple[Extent, ...]]:
    """Which rank writes which extents, so that everything is written once: of the holders, who has least so far."""
    rows = {spec.name: spec.row_elements for spec in specs}
    written = dict.fromkeys(layout.ranks, 0)
    assigned: dict[int, list[Extent]] = {}
    for extent, ranks in extents_of(specs, layout):
        writer = min(ranks, key=lambda rank: (written[rank], rank))
        written[writer] += (extent.stop - extent.start) * rows[extent.name]
        assigned.setdefault(writer, []).append(extent)
    return {rank: tuple(extents) for rank, extents in sorted(assigned.items())}
