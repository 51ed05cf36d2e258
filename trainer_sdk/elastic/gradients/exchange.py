"""Which pieces of the gradients are reduced by whom.

The slices of all replicas are cut at each other's borders; ranks that hold the same piece reduce it together. Equal
layouts give the usual all-reduce, unequal ones need nothing new.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor

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

    def views(self, buffer: Tensor, specs: Mapping[str, ParameterSpec]) -> Iterator[tuple[Piece, Tensor]]:
        """Each piece and its part of a buffer, in the shape of the piece."""
        start = 0
        for piece in self.pieces:
            shape = specs[piece.name].slice_shape(piece.stop - piece.start)
            stop = start + prod(shape)
            yield piece, buffer[start:stop].view(shape)
            start = stop


def plan_exchange(ownership: OwnershipMap) -> tuple[Bucket, ...]:
    """The buckets of a layout, sorted by their ranks; the same on every rank."""
    grouped: dict[tuple[int, ...], list[Piece]] = {}
    sizes: dict[tuple[int, ...], int] = {}
    for spec in ownership.specs.values():
        for start, stop, ranks, contributors in ownership.stretches(spec.name):
            grouped.setdefault(ranks, []).append(
                Piece(name=spec.name, start=start, stop=stop, contributors=contributors)
            )
            sizes[ranks] = sizes.get(ranks, 0) + (stop - start) * spec.row_elements
    return tuple(
        Bucket(ranks=ranks, pieces=tuple(grouped[ranks]), num_elements=sizes[ranks]) for ranks in sorted(grouped)
    )
