"""How rare a window of healthy frames must be to count, so that the operator's false alarms are kept."""

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.scan.windows import BLOCKS, LENGTHS

Floats = npt.NDArray[np.float64]

ITERATIONS_PER_FALSE_SUSPICION = 500.0
"""What is suspected costs a probe and a little learning, no verdict."""

FALSE_STANDINGS_OF_A_JOB = 1e-4
"""What stands apart from the first iteration on is looked at a few times in a job, not in every iteration."""

_LARGEST_SHARE = 0.05


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

    def of_verdict(self, freedoms: Floats) -> Floats:
        """What a window's mean must exceed to be told, in standard deviations of healthy ones: a Student quantile.

        Args:
            freedoms: Degrees of freedom that those are known with; the last axis is the length of the windows.
        """
        return np.asarray(-_quantiles(freedoms, self._verdict))

    def of_standing(self, freedoms: Floats) -> Floats:
        """The same for what stands apart from the beginning."""
        return np.asarray(-_quantiles(freedoms, self._standing))

    def of_suspicion(self, freedoms: Floats) -> Floats:
        """The same for a suspicion."""
        return np.asarray(-_quantiles(freedoms, self._suspicion))


def _quantiles(freedoms: Floats, shares: Floats | float) -> Floats:
    # Imported where it is needed: a service is ready before it has loaded this.
    from scipy.special import stdtrit  # noqa: PLC0415

    return np.asarray(stdtrit(freedoms, shares))
