"""What a rank's iteration should cost: compute seconds from the work it was given.

seconds = a * flops + b * flops that grow with squared lengths + c * micro-batches

``a`` is the price of an operation, ``b`` how much dearer attention's operations are, ``c`` what every micro-batch costs
however small. Flops come from the rank's own share of the model, so what was learned under one layout holds under the
next. Where the data cannot tell the three apart, all is put down to ``a``. Ranks whose shares are much alike say little
about ``c``: a stage that is dearer than its flops would pass for it, and what is expected of a much smaller share would
be far off. So ``c`` is believed reluctantly, and is never below 0.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.expectation import ForgettingLeastSquares
from services.detector.domain.middle import middle_of
from services.detector.domain.observation import FrameObservation

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FEATURES = ("flops", "square_flops", "micro_batches")
_EXPECTED, _LOG_RATIO = 1 + len(_FEATURES), 2 + len(_FEATURES)
_SMALLEST_SHARE = 0.2
_SHORTEST_SECONDS = 1e-12


class WorkExpectation:
    """The expected compute seconds of each rank of a job; one regressor for the whole job."""

    def __init__(self) -> None:
        self._model = ForgettingLeastSquares(
            forgetting=0.998, ridge=1e-3, primary="flops", reluctant="micro_batches", relative=True
        )
        self._seconds_per_flop = 0.0
        # A frame, what is known of each entry (see :func:`_foretell`), and how far apart the log ratios are.
        self._newest: tuple[FrameObservation, Floats, float] | None = None

    @property
    def num_learned(self) -> float:
        """Frames learned from, less what was forgotten."""
        return self._model.mass

    def expect(self, frame: FrameObservation) -> Floats:
        """Expected compute seconds of each entry; all above 0 once one frame was learned."""
        expected: Floats = self._foretold(frame)[0][_EXPECTED]
        return expected

    def compared(self, frame: FrameObservation) -> tuple[Floats, float]:
        """Log of each entry's compute seconds over the expected ones, and how far apart they are at most.

        Only of a frame all of whose compute seconds are above 0.
        """
        table, apart = self._foretold(frame)
        return table[_LOG_RATIO], apart

    def _foretold(self, frame: FrameObservation) -> tuple[Floats, float]:
        if self._newest is None or self._newest[0] is not frame:
            weights = self._model.weights_of(_FEATURES)
            table = np.empty((_LOG_RATIO + 1, len(frame)))
            # Far from what was seen the fit may say anything; the bare price of an operation bounds it from below.
            apart = _foretell(
                frame.compute_seconds,
                frame.token_flops,
                frame.square_flops,
                frame.num_micro_batches,
                weights,
                _SMALLEST_SHARE * self._seconds_per_flop,
                table,
            )
            self._newest = frame, table, apart
        return self._newest[1], self._newest[2]

    def price(self, token_flops: Floats, square_flops: Floats) -> Floats:
        """Expected compute seconds of single micro-batches, from their floating-point operations, backward included."""
        rows = np.column_stack([token_flops + square_flops, square_flops, np.ones(len(token_flops))])
        floor = _SMALLEST_SHARE * self._seconds_per_flop * rows[:, 0]
        found: Floats = np.maximum(self._model.predict_rows(_FEATURES, rows), np.maximum(floor, _SHORTEST_SECONDS))
        return found

    def learn(self, frame: FrameObservation, entries: Bools | None, expected: Floats | None) -> None:
        """Learns some entries of a frame, each by its relative error.

        Args:
            frame: The frame.
            entries: Which entries to learn; None for all.
            expected: What was expected of all entries; None for the first frames.
        """
        table = self._foretold(frame)[0]
        self._newest = None  # nobody asks for this frame again
        columns = table[:_EXPECTED]
        unit = columns[0] if expected is None else expected
        if entries is not None:
            if not np.count_nonzero(entries):
                return
            columns, unit = columns.compress(entries, axis=1), unit[entries]
        found = _usual_price(columns)
        self._model.learn_columns(_FEATURES, columns, units=unit)
        rate = 1.0 if self._seconds_per_flop == 0 else 0.02
        self._seconds_per_flop += rate * (found - self._seconds_per_flop)

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain values and arrays."""
        return {"model": self._model.to_state(), "seconds_per_flop": self._seconds_per_flop}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._model.restore(state["model"])
        self._seconds_per_flop = state["seconds_per_flop"]


@compiled
def compare(seconds: Floats, expected: Floats, log_ratios: Floats) -> float:
    """Writes the log of each entry's compute seconds over the expected ones; returns how far apart they are at most."""
    lowest, highest = math.inf, -math.inf
    for entry in range(len(expected)):
        value = math.log(seconds[entry] / expected[entry])
        log_ratios[entry] = value
        lowest, highest = min(lowest, value), max(highest, value)
    return highest - lowest


@compiled
def _foretell(
    seconds: Floats,
    token_flops: Floats,
    square_flops: Floats,
    counts: Ints,
    weights: Floats,
    least: float,
    table: Floats,
) -> float:
    """Writes what is known of each entry: what is learned of it, its expected seconds, and how the two compare.

    Args:
        seconds: Compute seconds; one an entry, as in all others.
        token_flops: Operations that grow with tokens.
        square_flops: Operations that grow with squared lengths.
        counts: Micro-batches.
        weights: Of flops, those of attention, and micro-batches.
        least: Expected seconds of an operation at least.
        table: Rows seconds, flops, those of attention, micro-batches, expected seconds, log of the first over the
            last; written.

    Returns:
        How far apart the logs are at most.
    """
    lowest, highest = math.inf, -math.inf
    for entry in range(len(seconds)):
        flops = token_flops[entry] + square_flops[entry]
        total = weights[0] * flops + weights[1] * square_flops[entry] + weights[2] * counts[entry]
        expected = max(total, least * flops, _SHORTEST_SECONDS)
        value = math.log(seconds[entry] / expected) if seconds[entry] > 0.0 else -math.inf
        table[0, entry], table[1, entry], table[2, entry] = seconds[entry], flops, square_flops[entry]
        table[3, entry], table[4, entry], table[5, entry] = counts[entry], expected, value
        lowest, highest = min(lowest, value), max(highest, value)
    return highest - lowest


@compiled
def _usual_price(columns: Floats) -> float:
    """Median over entries of the seconds of a flop; columns as :func:`_foretell` writes them."""
    return middle_of(columns[0] / (columns[1] + 1e-300))
