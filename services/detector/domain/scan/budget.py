"""How rare a window of healthy frames must be to count, so that the operator's false alarms are kept."""

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.domain.scan.widths import Widths
from evenkeel.services.detector.domain.scan.windows import BLOCKS, LENGTHS

ITERATIONS_PER_FALSE_SUSPICION = 500.0
"""What is suspected costs a probe and a little learning, no verdict."""

FALSE_STANDINGS_OF_A_JOB = 1e-4
"""What stands apart from the first iteration on is looked at a few times in a job, not in every iteration."""

_LARGEST_SHARE = 0.05
_FEWEST = 16.0


class Budget:
    """Shares the false alarms of a job among its rows and the lengths of windows.

    Args:
        iterations_per_false_alarm: Healthy iterations of the job per false verdict.
        num_rows: Rows that are judged.
    """

    def __init__(self, *, iterations_per_false_alarm: float, num_rows: int) -> None:
        # A window is looked at once a block.
        looks = np.array(LENGTHS) / BLOCKS / (max(num_rows, 1) * len(LENGTHS))
        self._verdict: Floats = np.minimum(looks / iterations_per_false_alarm, _LARGEST_SHARE)
        self._standing = FALSE_STANDINGS_OF_A_JOB / max(num_rows, 1)
        self._suspicion: Floats = np.minimum(looks / ITERATIONS_PER_FALSE_SUSPICION, _LARGEST_SHARE)

    def of_verdict(self, widths: Widths) -> Floats:
        """What a window's mean must exceed to be told, by clock and length."""
        return _heights(widths, self._verdict)

    def of_suspicion(self, widths: Widths) -> Floats:
        """The same for a suspicion."""
        return _heights(widths, self._suspicion)

    def of_standing(self, widths: Widths) -> Floats:
        """The same for what stands apart from the beginning."""
        return _heights(widths, np.full(len(LENGTHS), self._standing))


def _heights(widths: Widths, shares: Floats) -> Floats:
    """As far as so rare a window of healthy frames would go, by what was seen of them.

    Two foretellings, of which the farther one counts: the width, as unsure as it is; and the farthest window seen,
    which had one chance in as many as there were, with tails that fall like normal ones from there on. A window far out
    may be due to chance or to a width beyond what is thought, whose logarithm is normal: the likelier mixture counts.
    """
    # Imported where it is needed: a service is ready before it has loaded this.
    from scipy.special import stdtrit  # noqa: PLC0415

    # Of a Student distribution with these excesses of the fourth moment.
    chance = stdtrit(4 + 6 / widths.tails, shares)
    mixed = (np.sqrt(1 + 4 * widths.spreads * chance**2) - 1) / (2 * widths.spreads)
    by_width = widths.widths * np.sqrt(mixed) * np.exp(widths.spreads * mixed)
    by_farthest = widths.farthest * np.sqrt(np.log(shares) / -np.log(np.maximum(widths.num_seen, _FEWEST)))
    return np.asarray(np.maximum(by_width, by_farthest))
