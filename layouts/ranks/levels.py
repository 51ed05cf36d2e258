"""Levels in which many ranks agree, a few at a time: it follows from the ranks alone, so every rank knows it.

What n ranks do in one group costs each of them n - 1 connections and a ring of n - 1 steps; in l levels no group is
wider than about the l-th root of n, and few ranks are in more than one. Groups are stretches of neighbouring ranks,
which mostly share a node or a rack.
"""

from collections.abc import Sequence
from itertools import pairwise

WIDEST_GROUP = 64
"""Most ranks that agree in one group: two levels reach 4,096 ranks, three 262,144."""

Levels = tuple[tuple[tuple[int, ...], ...], ...]
"""Groups of ranks, level by level. The first rank of a group leads it, and is in a group of the next level."""


def levels_of(ranks: Sequence[int], widest: int) -> Levels:
    """As few levels as groups of at most ``widest`` ranks allow, cut evenly; the last has one group.

    Args:
        ranks: Everybody, in an order that all agree on; at least one.
        widest: Most ranks of a group, at least 2.

    >>> levels_of(range(5), 8)
    (((0, 1, 2, 3, 4),),)
    >>> levels_of(range(5), 4)
    (((0, 1), (2, 3, 4)), ((0, 2),))
    """
    num_levels = 1
    while widest**num_levels < len(ranks):
        num_levels += 1
    levels = []
    members = tuple(ranks)
    for left in range(num_levels, 0, -1):
        num_groups = -(-len(members) // _root(len(members), left))
        borders = [len(members) * group // num_groups for group in range(num_groups + 1)]
        groups = tuple(members[start:stop] for start, stop in pairwise(borders))
        levels.append(groups)
        members = tuple(group[0] for group in groups)
    return tuple(levels)


def path_of(levels: Levels, rank: int) -> tuple[tuple[int, ...], ...]:
    """The groups that a rank is in, from the first level up: it leads all but the last, and that one if it is the top.

    Raises:
        ValueError: The rank is in none.
    """
    path = []
    for groups in levels:
        mine = next((group for group in groups if rank in group), None)
        if mine is None:
            break
        path.append(mine)
    if not path:
        raise ValueError(f"rank {rank} is not among the {sum(len(group) for group in levels[0])} ranks that meet")
    return tuple(path)


def _root(number: int, degree: int) -> int:
    """The least integer whose power of that degree is at least ``number``."""
    root: int = max(1, round(number ** (1.0 / degree)) - 1)
    while root**degree < number:
        root += 1
    return root
