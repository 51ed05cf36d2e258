"""Whole numbers for proofs: times and sizes as small fractions, and what makes all of them whole."""

from collections.abc import Iterable
from fractions import Fraction
from math import lcm

_MOST = 10**6
_ROUNDING = 1e-9


def small_fraction(value: float, most: int = _MOST) -> Fraction:
    """A number as the fraction with a denominator of at most ``most`` that it is.

    Raises:
        ValueError: It is none.
    """
    fraction = Fraction(value).limit_denominator(most)
    if abs(float(fraction) - value) > _ROUNDING * abs(value):
        raise ValueError(f"{value:g} is no small fraction, which a proof needs: round it, or give it in a smaller unit")
    return fraction


def common_scale(values: Iterable[Fraction]) -> int:
    """What makes each of some fractions a whole number.

    Raises:
        ValueError: It is larger than a million.
    """
    scale = lcm(*(value.denominator for value in values))
    if scale > _MOST:
        raise ValueError("times, speeds and activations must be small fractions for a proof; round them")
    return scale
