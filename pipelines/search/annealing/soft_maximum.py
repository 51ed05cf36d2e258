"""A soft maximum of the devices' ends: that of one alone counts most, but the others' do too.

It is the sixth-power mean of what the ends are above a base, which all that are compared have in common.
"""

from evenkeel.numeric.compiled import compiled


@compiled
def excess(end: float, base: float) -> float:
    """What an end adds to the sum: the sixth power of how far it is above the base."""
    over = max(0.0, end - base)
    over *= over * over
    return over * over


@compiled
def soft_end(total: float, count: int, base: float) -> float:
    """The end that all of so many devices would have at the same sum."""
    return float(base + (total / count) ** (1.0 / 6.0))


@compiled
def total_of(soft: float, count: int, base: float) -> float:
    """The sum at which :func:`soft_end` is this."""
    return count * excess(soft, base)
