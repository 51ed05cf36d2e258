"""What a transfer of so many bytes costs on average: a latency and seconds per byte for each class, learned online.

Fitted so that relative errors count, which also keeps rare slow transfers from pulling the line up; older operations
are forgotten.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Floats

Classes = npt.NDArray[np.int64]

NUM_CLASSES = 4
_KEPT_PER_ITERATION = 0.98
_RIDGE = 1e-3
_BYTES = 1e6


@dataclass(slots=True, eq=False)
class TransferCost:
    """Learns ``seconds = latency + bytes / speed``."""

    # Of each class the products of the features with one another, then those with the target.
    _moments: Floats = field(default_factory=lambda: np.zeros((NUM_CLASSES, 2, 3)))

    def expect(self, classes: Classes, num_bytes: Floats) -> Floats:
        """Expected seconds; a class of which nothing was learned costs a second each."""
        lines = np.array([self._line(index) for index in range(NUM_CLASSES)])
        seconds: Floats = lines[classes, 0] + lines[classes, 1] * num_bytes / _BYTES
        return np.where(seconds > 0, seconds, 1.0)

    def learn(self, classes: Classes, num_bytes: Floats, seconds: Floats) -> None:
        """Takes one iteration's healthy operations; seconds are finite and above 0."""
        for index in np.unique(classes):
            mine = classes == index
            features = np.stack([1.0 / seconds[mine], num_bytes[mine] / _BYTES / seconds[mine]], axis=1)
            moments = self._moments[index]
            moments *= _KEPT_PER_ITERATION
            moments[:, :2] += features.T @ features
            moments[:, 2] += features.sum(axis=0)

    def bytes_within(self, seconds: float) -> Floats:
        """Bytes of a transfer that takes so long, for each class; at least what takes half as long beside its latency.

        Infinite for a class whose transfers do not get longer with their bytes, as far as is known.
        """
        lines = np.array([self._line(index) for index in range(NUM_CLASSES)])
        with np.errstate(divide="ignore"):
            found: Floats = np.maximum(seconds - lines[:, 0], seconds / 2) / (lines[:, 1] / _BYTES)
        return found

    def _line(self, index: int) -> tuple[float, float]:
        """Latency and seconds per megabyte, neither below 0; where the data cannot tell them apart, all is per byte."""
        power, target = self._moments[index, :, :2], self._moments[index, :, 2]
        if power[0, 0] <= 0:
            return 0.0, 0.0
        if power[1, 1] <= 0:
            return float(target[0] / power[0, 0]), 0.0
        ridge = np.diag([_RIDGE * power[0, 0], 0.0])
        latency, per_byte = np.linalg.solve(power + ridge, target)
        if per_byte < 0:
            return float(target[0] / power[0, 0]), 0.0
        if latency < 0:
            return 0.0, float(target[1] / power[1, 1])
        return float(latency), float(per_byte)
