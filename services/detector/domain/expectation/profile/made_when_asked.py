"""Sequences whose items are made when they are asked for; they are equal to any sequence of the same items."""

from collections.abc import Sequence
from typing import TypeVar

Item_co = TypeVar("Item_co", covariant=True)


class MadeWhenAsked(Sequence[Item_co]):
    """What those have in common, but for how many there are and how one is made."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
