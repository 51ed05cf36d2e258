"""What all sides of an operation between ranks agree on without talking: its group's number, which ones are timed."""

import zlib
from collections.abc import Iterable
from functools import cache

MAX_STAMPS = 8
"""Operations of a channel that are told with their times, per iteration."""


def group_number(ranks: Iterable[int]) -> int:
    """A number for a group of ranks, in any order; the same everywhere, and other groups of a job have another one."""
    return zlib.crc32(",".join(str(rank) for rank in sorted(ranks)).encode())


def ring_part(num_members: int) -> float:
    """What a ring all-reduce of the same tensor takes among so many ranks, over what it takes between two.

    Each rank sends ``2 (n - 1) / n`` of the tensor (Patarasuk and Yuan, 2009); a rank alone sends nothing.

    >>> ring_part(1), ring_part(2), ring_part(4)
    (0.0, 1.0, 1.5)
    """
    return 2.0 * (num_members - 1) / num_members


@cache
def stamped_indices(num_operations: int) -> tuple[int, ...]:
    """Which of a channel's operations are told: all, or ``MAX_STAMPS`` from the first to the last.

    The first and the last matter most: when a pipeline fills and drains, receivers wait for senders.
    """
    if num_operations <= MAX_STAMPS:
        return tuple(range(num_operations))
    return tuple(round(place * (num_operations - 1) / (MAX_STAMPS - 1)) for place in range(MAX_STAMPS))
