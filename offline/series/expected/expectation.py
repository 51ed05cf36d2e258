"""What iterations of a series should take beside one another: by their workload where it is given, else by turns."""

import math

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.offline.series.expected.rhythm import Rhythm
from evenkeel.offline.series.finding import Iteration
from evenkeel.services.detector.domain.expectation.forgetting_least_squares import ForgettingLeastSquares

# Beyond what was seen a fit may say anything: what it is not sure of within so many scales is learned and not judged.
_SCALES_OF_DOUBT = 2.0
_SMALLEST_DOUBT = 0.015
_SHARE_OF_A_FEATURE = 1.0
_FEATURES = ("tokens", "squares", "constant")


class SeriesExpectation:
    """Learns as it goes; deterministic."""

    def __init__(self) -> None:
        self._model = ForgettingLeastSquares(forgetting=0.998, ridge=1e-3, primary="tokens")
        self._rhythm = Rhythm()

    @property
    def knows_workloads(self) -> bool:
        """It has learned from one at least."""
        return self._model.mass > 0

    def seconds(self, one: Iteration) -> float:
        """What an iteration should take, up to a factor that is the same for all."""
        if one.tokens is None:
            return math.exp(self._rhythm.longer(one.iteration))
        if not self.knows_workloads:
            return 1.0
        found = float(self._model.predict_rows(_FEATURES, _row(one))[0])
        # Far from what was seen the fit may say anything; a hundredth of the truth is never plausible.
        return max(found, 0.01 * one.seconds)

    def is_new_ground(self, one: Iteration, expected: float, *, scale: float) -> bool:
        """Its workload is too far from what was seen for its time to be expected.

        Args:
            one: The iteration.
            expected: What :meth:`seconds` says.
            scale: Of the noise, log units of time.
        """
        if one.tokens is None:
            return False
        row = _row(one)[0] / expected
        doubt = self._model.doubt(_FEATURES, row, noise=scale, believed=_SHARE_OF_A_FEATURE)
        return doubt > max(_SCALES_OF_DOUBT * scale, _SMALLEST_DOUBT)

    def learn(self, one: Iteration, unit: float) -> None:
        """Takes an iteration that has a workload; ``unit`` is about what it should have taken, seconds."""
        self._model.learn_rows(_FEATURES, _row(one) / unit, np.array([one.seconds / unit]))

    def look_for_turns(self, iterations: Floats, logs: Floats) -> bool:
        """Finds how much longer each turn is, where some are; False where nothing is found that was not known.

        Args:
            iterations: Their numbers.
            logs: Logarithms of their lengths, turns included.
        """
        return self._rhythm.look(iterations, logs)

    def turns(self, iterations: Floats) -> Floats:
        """By how much iterations are longer because of their turns, log units of time."""
        return self._rhythm.longer_each(iterations)


def _row(one: Iteration) -> Floats:
    assert one.tokens is not None
    return np.array([[one.tokens, one.sum_of_squares or 0.0, 1.0]])
