"""What a rank's iteration should cost: compute seconds from the work it was given.

seconds = a * flops + b * flops that grow with squared lengths + c * micro-batches

``a`` is the price of an operation, ``b`` how much dearer attention's operations are, ``c`` what every micro-batch costs
however small. Flops come from the rank's own share of the model, so what was learned under one layout holds under the
next. Where the data cannot tell the three apart, all is put down to ``a``. Ranks whose shares are much alike say little
about ``c``: a stage that is dearer than its flops would pass for it, and what is expected of a much smaller share would
be far off. So ``c`` is believed reluctantly, and is never below 0.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.expectation import ForgettingLeastSquares
from services.detector.domain.middle import median
from services.detector.domain.observation import FrameObservation

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_FEATURES = ("flops", "square_flops", "micro_batches")
_SMALLEST_SHARE = 0.2
_SHORTEST_SECONDS = 1e-12


class WorkExpectation:
    """The expected compute seconds of each rank of a job; one regressor for the whole job."""

    def __init__(self) -> None:
        self._model = ForgettingLeastSquares(
            forgetting=0.998, ridge=1e-3, primary="flops", reluctant="micro_batches", relative=True
        )
        self._seconds_per_flop = 0.0
        self._newest: tuple[FrameObservation, Floats] | None = None

    @property
    def num_learned(self) -> float:
        """Frames learned from, less what was forgotten."""
        return self._model.mass

    def expect(self, frame: FrameObservation) -> Floats:
        """Expected compute seconds of each entry; all above 0 once one frame was learned."""
        columns = self._columns(frame)
        # Far from what was seen the fit may say anything; the bare price of an operation bounds it from below.
        expected = self._model.predict_columns(_FEATURES, columns[1:])
        np.maximum(expected, columns[1] * (_SMALLEST_SHARE * self._seconds_per_flop), out=expected)
        if expected[expected.argmin()] < _SHORTEST_SECONDS:
            np.maximum(expected, _SHORTEST_SECONDS, out=expected)
        return expected

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
        columns = self._columns(frame)
        unit = columns[0] if expected is None else expected
        if entries is not None:
            if not np.count_nonzero(entries):
                return
            columns, unit = columns[:, entries], unit[entries]
        self._model.learn_columns(_FEATURES, columns / unit)
        found = median(columns[0] / (columns[1] + 1e-300))
        rate = 1.0 if self._seconds_per_flop == 0 else 0.02
        self._seconds_per_flop += rate * (found - self._seconds_per_flop)
        self._newest = None  # nobody asks for this frame again

    def _columns(self, frame: FrameObservation) -> Floats:
        """Seconds first, then one row a feature."""
        if self._newest is not None and self._newest[0] is frame:
            return self._newest[1]
        columns: Floats = np.empty((1 + len(_FEATURES), len(frame)))
        columns[0] = frame.compute_seconds
        np.add(frame.token_flops, frame.square_flops, out=columns[1])
        columns[2], columns[3] = frame.square_flops, frame.num_micro_batches
        self._newest = frame, columns
        return columns

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain values and arrays."""
        return {"model": self._model.to_state(), "seconds_per_flop": self._seconds_per_flop}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._model.restore(state["model"])
        self._seconds_per_flop = state["seconds_per_flop"]
