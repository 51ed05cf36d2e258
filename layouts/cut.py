"""How a tensor axis is cut over unequal shards: the one rounding rule that engine and planner share; and even parts."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise


def cut(size: int, granule: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Borders of the shards of an axis: shard t holds ``[borders[t], borders[t + 1])``.

    Each border is the exact proportional border rounded to the nearest granule (half up), so shards are contiguous,
    cover the axis exactly once, and differ from their exact width by less than one granule. A shard may come out
    empty when there are fewer granules than shards.

    Args:
        size: Length of the axis.
        granule: Smallest unit that may not be cut, for example one attention head; divides ``size``.
        shares: Relative widths, each at least 0, not all 0.

    Raises:
        ValueError: ``granule`` does not divide ``size``, or the shares are unusable.

    >>> cut(12, 1, [1, 1])
    (0, 6, 12)
    >>> cut(12, 1, [2, 1])
    (0, 8, 12)
    >>> cut(64, 8, [3, 2])
    (0, 40, 64)
    """
    if granule < 1 or size % granule:
        raise ValueError(f"granule {granule} does not divide an axis of {size}")
    total = sum(shares)
    if total <= 0 or min(shares) < 0:
        raise ValueError(f"shares {tuple(shares)}: each at least 0 and their sum above 0")
    num_granules = size // granule
    borders = [0]
    running = 0
    for share in shares:
        running += share
        borders.append((2 * running * num_granules + total) // (2 * total) * granule)
    return tuple(borders)


def even_parts(total: int, count: int) -> tuple[int, ...]:
    """Whole parts of a number that are as even as they can be; the first ones get what is left over.

    >>> even_parts(7, 3)
    (3, 2, 2)
    """
    return tuple([total // count + (place < total % count) for place in range(count)])


@lru_cache(maxsize=65536)
def shard_parts(max_width: int, shares: tuple[int, ...]) -> tuple[float, ...]:
    """The part of a block that each shard holds and computes; all of it where the block is not sharded.

    Args:
        max_width: Granules of the block; 1 = it is not sharded.
        shares: Relative widths.

    >>> shard_parts(12, (2, 1, 1))
    (0.5, 0.25, 0.25)
    >>> shard_parts(1, (2, 1, 1))
    (1.0, 1.0, 1.0)
    """
    if max_width <= 1:
        return (1.0,) * len(shares)
    return tuple([(stop - first) / max_width for first, stop in pairwise(cut(max_width, 1, shares))])
