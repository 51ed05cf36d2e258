"""What means of noise are of which a share is left in the next iteration: a first-order autoregression."""

import math


def spread_of_means(share: float, length: int) -> float:
    """Standard deviation of a mean over so many iterations in a row, as a part of that of one iteration.

    Args:
        share: Lag-one correlation, at least 0 and below 1.
        length: Iterations, at least 1.
    """
    return math.sqrt(_variance(share, length)) / (length * (1 - share))


def worth_of_means(share: float, length: int) -> float:
    """How many independent ones each of such means is worth, at most 1, where they follow one another.

    Their mean square is known no better than from so many fewer (Bartlett 1946).

    Args:
        share: Lag-one correlation, at least 0 and below 1.
        length: Iterations, at least 1.
    """
    alike = share * (1 - share**length) ** 2 / _variance(share, length)
    return 1.0 / (1.0 + 2.0 * alike**2 / (1.0 - share ** (2 * length)))


def _variance(share: float, length: int) -> float:
    """Of a sum of so many, in units in which that of one is ``(1 - share)^2`` times its variance."""
    return length * (1 - share**2) - 2 * share * (1 - share**length)
