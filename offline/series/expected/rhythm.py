"""Iterations that take longer by turns, as each fourth where gradients are summed over four: how long each turn is.

Where more than one in seven is long, they are no pauses, and noise wide enough to hold them would hide a slowdown.
"""

import math

import numpy as np

from evenkeel.numeric.arrays import Floats

LONGEST_PERIOD = 32

_FEWEST_CYCLES = 3
# What is no more uneven than this, log units of time, needs no rhythm; the turns leave this share of what is.
_LEAST_UNEVEN, _LEFT = 0.03, 0.35
_SHARE_HELD = 0.9


class Rhythm:
    """The turns of a series by the number of the iteration; one turn of no account until a rhythm is found."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: Floats = np.zeros(1)

    def longer(self, iteration: int) -> float:
        """By how much an iteration is longer because of its turn, log units of time."""
        return float(self._turns[iteration % len(self._turns)])

    def longer_each(self, iterations: Floats) -> Floats:
        """The same for many."""
        found: Floats = self._turns[iterations.astype(np.int64) % len(self._turns)]
        return found

    def look(self, iterations: Floats, logs: Floats) -> bool:
        """Finds the shortest period that explains most of what some iterations differ by; False where none does.

        Also where the one that is known does.

        Args:
            iterations: Their numbers.
            logs: Logarithms of their lengths, turns included.
        """
        uneven = _uneven(logs)
        if uneven < _LEAST_UNEVEN or _uneven(logs - self.longer_each(iterations)) <= _LEFT * uneven:
            return False
        for period in range(2, min(len(logs) // _FEWEST_CYCLES, LONGEST_PERIOD) + 1):
            # A quick look first: one period apart most are alike.
            if float(np.median(np.abs(logs[period:] - logs[:-period]))) > _LEFT * uneven:
                continue
            turn = iterations.astype(np.int64) % period
            counts = np.bincount(turn, minlength=period)
            if counts.min() < _FEWEST_CYCLES - 1:
                continue
            turns = np.array([np.median(logs[turn == each]) for each in range(period)])
            if _uneven(logs - turns[turn]) <= _LEFT * uneven:
                self._turns = turns - float(np.median(turns))
                return True
        return False


def _uneven(logs: Floats) -> float:
    """How far most are at most from their middle."""
    return float(np.sort(np.abs(logs - np.median(logs)))[math.ceil(_SHARE_HELD * len(logs)) - 1])
