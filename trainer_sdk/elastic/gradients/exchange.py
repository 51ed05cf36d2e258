"""Which pieces of the gradients are reduced by whom.

The slices of all replicas are cut at each other's borders; ranks that hold the same piece reduce it together. Equal
layouts give the usual all-reduce, unequal ones need nothing new.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """``[start, stop)`` of a parameter's cut axis, and the ranks that contribute to it: one of each replica."""

    name: str
    start: int
    stop: int
    contributors: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Pieces that the same ranks hold: one flat buffer, one all-reduce.

    Attributes:
        ranks: All holders, ascending. Holders that do not contribute to a piece add zeros and receive the sum, so
            that copies of one tensor stay bit-identical.
        pieces: In the order of the buffer.
        num_elements: Length of the buffer.
    """

    ranks: tuple[int, ...]
    pieces: tuple[Piece, ...]
    num_elements: int


def plan_exchange(specs: Sequence[ParameterSpec], layout: Layout) -> tuple[Bucket, ...]:
    """The buckets of a layout, sorted by their ranks; the same on every rank."""
    ownership = OwnershipMap(specs, layout)
    grouped: dict[tuple[int, ...], list[Piece]] = {}
    sizes: dict[tuple[int, ...], int] = {}
    for spec in specs:
        for start, stop, ranks, contributors in ownership.stretches(spec.name):
            grouped.setdefault(ranks, []).append(
                Piece(name=spec.name, start=start, stop=stop, contributors=contributors)
            )
            sizes[ranks] = sizes.get(ranks, 0) + (stop - start) * spec.row_elements
    return tuple(
        Bucket(ranks=ranks, pieces=tuple(grouped[ranks]), num_elements=sizes[ranks]) for ranks in sorted(grouped)
    )
