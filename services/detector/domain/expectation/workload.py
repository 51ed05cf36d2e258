"""What a rank's iteration should cost: compute seconds from the work it was given.

seconds = a * flops + b * flops that grow with squared lengths + c * micro-batches

``a`` is the price of an operation, ``b`` how much dearer attention's operations are, ``c`` what every micro-batch costs
however small. Flops come from the rank's own share of the model, so what was learned under one layout holds under the
next. Where the data cannot tell the three apart, all is put down to ``a``. Ranks whose shares are much alike say little
about ``c``: a stage that is dearer than its flops would pass for it, and what is expected of a much smaller share would
be far off. So ``c`` is believed reluctantly, and is never below 0.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.expectation.forgetting_least_squares import ForgettingLeastSquares
from evenkeel.services.detector.domain.frames.table import (
    EXPECTED,
    FLOPS,
    LOG_RATIO,
    MICRO_BATCHES,
    SECONDS,
    SQUARE_FLOPS,
)
from evenkeel.services.detector.domain.memory.middle import middle_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FEATURES = ("flops", "square_flops", "micro_batches")
_FRAMES_TO_LEARN = 3
_SMALLEST_SHARE = 0.2
_SHORTEST_SECONDS = 1e-12


@dataclass(slots=True, eq=False)
class WorkExpectation:
    """The expected compute seconds of each rank of a job; one regressor for the whole job."""

    model: ForgettingLeastSquares = field(
        default_factory=lambda: ForgettingLeastSquares(
            forgetting=0.998, ridge=1e-3, primary="flops", reluctant="micro_batches"
        )
    )
    _seconds_per_flop: float = 0.0

    @property
    def num_learned(self) -> float:
        """Frames learned from, less what was forgotten."""
        return self.model.mass

    @property
    def has_learned(self) -> bool:
        """Enough frames were learned to expect something of the next one."""
        return self.num_learned >= _FRAMES_TO_LEARN

    def expect(self, table: Floats) -> tuple[Floats, float]:
        """Expected compute seconds of each entry, and how far apart the logs of the observed ones over them are.

        Args:
            table: Of a frame, see :mod:`frame_table`; expected seconds and log ratios are written.

        Returns:
            A row of the table, all above 0 once one frame was learned; the distance between the highest and the lowest
            ratio, for a frame all of whose compute seconds are above 0.
        """
        apart = foretell(table, self.model.weights_of(_FEATURES), self._seconds_per_flop)
        expected: Floats = table[EXPECTED]
        return expected, apart

    def price(self, token_flops: Floats, square_flops: Floats) -> Floats:
        """Expected compute seconds of single micro-batches, from their floating-point operations, backward included."""
        rows = np.column_stack([token_flops + square_flops, square_flops, np.ones(len(token_flops))])
        floor = _SMALLEST_SHARE * self._seconds_per_flop * rows[:, 0]
        found: Floats = np.maximum(self.model.predict_rows(_FEATURES, rows), np.maximum(floor, _SHORTEST_SECONDS))
        return found

    def learn(self, table: Floats, entries: Bools | None, expected: Floats | None) -> None:
        """Learns some entries of a frame, each by its relative error.

        Args:
            table: Of the frame, as :meth:`expect` takes it.
            entries: Which entries to learn; None for all.
            expected: What was expected of all entries; None for the first frames.
        """
        columns = table[:EXPECTED]
        unit = columns[SECONDS] if expected is None else expected
        if entries is not None:
            if not np.count_nonzero(entries):
                return
            columns, unit = columns.compress(entries, axis=1), unit[entries]
        price = _usual_price(columns)
        self.model.learn_columns(_FEATURES, columns, units=unit)
        self._follow(price)

    def _follow(self, price: float) -> None:
        self._seconds_per_flop = _followed(self._seconds_per_flop, price)


@compiled
def foretell(table: Floats, weights: Floats, seconds_per_flop: float) -> float:
    """Writes the expected seconds of each entry of a frame, and how those that were observed compare.

    Far from what was seen the fit may say anything; the bare price of an operation bounds it from below.

    Args:
        table: See :mod:`frame_table`; expected seconds and log ratios are written.
        weights: Of flops, those of attention, and micro-batches.
        seconds_per_flop: What an operation usually takes.

    Returns:
        How far apart the logs are at most.
    """
    lowest, highest, least = math.inf, -math.inf, _SMALLEST_SHARE * seconds_per_flop
    for entry in range(table.shape[1]):
        flops, seconds = table[FLOPS, entry], table[SECONDS, entry]
        total = weights[0] * flops + weights[1] * table[SQUARE_FLOPS, entry] + weights[2] * table[MICRO_BATCHES, entry]
        expected = max(total, least * flops, _SHORTEST_SECONDS)
        value = math.log(seconds / expected) if seconds > 0.0 else -math.inf
        table[EXPECTED, entry], table[LOG_RATIO, entry] = expected, value
        lowest, highest = min(lowest, value), max(highest, value)
    return highest - lowest


@compiled
def _followed(seconds_per_flop: float, price: float) -> float:
    """What an operation usually takes, after one more frame in which it took ``price``."""
    rate = 1.0 if seconds_per_flop == 0 else 0.02
    return seconds_per_flop + rate * (price - seconds_per_flop)


@compiled
def _usual_price(columns: Floats) -> float:
    """Median over entries of the seconds of a flop; rows as in :mod:`frame_table`."""
    return middle_of(columns[SECONDS] / (columns[FLOPS] + 1e-300))
