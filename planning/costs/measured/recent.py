"""Iterations that a job has run: what they took and what they consisted of."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentIteration:
    """One iteration under the layout in force.

    Attributes:
        wall_seconds: Of its slowest rank.
        tokens: Tokens N of each micro-batch, by its index in the iteration.
        sums_of_squares: Sum of squared lengths of each.

    Raises:
        ValueError: Numbers that no iteration can have.
    """

    wall_seconds: float
    tokens: tuple[int, ...]
    sums_of_squares: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.wall_seconds) and self.wall_seconds > 0.0):
            raise ValueError(f"an iteration took {self.wall_seconds} s: a finite number above 0")
        if not self.tokens or len(self.tokens) != len(self.sums_of_squares):
            raise ValueError(
                f"an iteration of {len(self.tokens)} numbers of tokens and {len(self.sums_of_squares)} sums of "
                "squares: one of each for each micro-batch, and at least one"
            )
        if min(self.tokens) < 0 or min(self.sums_of_squares) < 0 or sum(self.tokens) < 1:
            raise ValueError("an iteration has a micro-batch of less than no tokens, or none at all")
