"""A frame's numbers in one table, and what one look at them says."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ROWS = (
    *("seconds", "flops", "square_flops", "micro_batches", "expected", "log_ratio", "others", "walls"),
    *("tensor_wait", "gradient_wait", "vote_wait", "tokens", "squares", "loss", "gradient_norm"),
)
"""Rows of a table, one column an entry; expected seconds and their log ratio are written by those who know them, losses
and gradient norms are NaN where none was reported."""

SECONDS, FLOPS, SQUARE_FLOPS, MICRO_BATCHES, EXPECTED, LOG_RATIO = range(6)
OTHERS, WALLS, TENSOR_WAIT, GRADIENT_WAIT, VOTE_WAIT, TOKENS, SQUARES, LOSS, GRADIENT_NORM = range(6, len(ROWS))

_TENSOR, _GRADIENT, _VOTE = 0, 2, 3
_NOBODY: Ints = np.zeros((2, 0), dtype=np.int64)

Range = tuple[int, bool, float, float]
"""How many report a value, whether all of them are finite, and the lowest and the highest of the finite ones."""


class FrameTable(NamedTuple):
    """A frame's numbers, and what one look at them says.

    Attributes:
        numbers: ``ROWS`` by entries.
        has_processes_of_before: Ranks and incarnations are those that are known.
        has_layout_of_before: Everybody holds what it did under the known layout.
        is_planned: Some entry had a planned pause or a reshape.
        is_measured: All times are numbers, compute seconds above 0.
        ranges: Those of the losses and gradient norms that are reported.
    """

    numbers: Floats
    has_processes_of_before: bool
    has_layout_of_before: bool
    is_planned: bool
    is_measured: bool
    ranges: tuple[Range, Range]


def table_of(frame: FrameObservation, layout: FrameLayout | None = None, located: Ints = _NOBODY) -> FrameTable:
    """The table of a frame.

    Args:
        frame: The frame, of at least one entry.
        layout: The one that is known.
        located: Ranks, then incarnations, of the processes that are known.
    """
    waits, flops = frame.wait_seconds, frame.token_flops + frame.square_flops
    numbers: Floats = np.empty((len(ROWS), len(frame)))
    for row, column in (
        (SECONDS, frame.compute_seconds),
        (FLOPS, flops),
        (SQUARE_FLOPS, frame.square_flops),
        (MICRO_BATCHES, frame.num_micro_batches),
        (OTHERS, frame.other_seconds),
        (WALLS, frame.wall_seconds),
        (TENSOR_WAIT, waits[:, _TENSOR]),
        (GRADIENT_WAIT, waits[:, _GRADIENT]),
        (VOTE_WAIT, waits[:, _VOTE]),
        (TOKENS, frame.tokens),
        (SQUARES, frame.sums_of_squares),
    ):
        numbers[row] = column
    numbers[LOSS] = np.where(frame.has_loss, frame.losses, np.nan)
    numbers[GRADIENT_NORM] = np.where(frame.has_gradient_norm, frame.gradient_norms, np.nan)
    times = frame.compute_seconds + frame.other_seconds + frame.wall_seconds + waits.sum(axis=1)
    return FrameTable(
        numbers,
        np.array_equal(located[0], frame.ranks) and np.array_equal(located[1], frame.incarnations),
        layout is not None and layout.is_of(frame),
        bool(frame.planned.any()),
        bool((frame.compute_seconds > 0.0).all() and np.isfinite(times).all()),
        (_range_of(frame.losses, frame.has_loss), _range_of(frame.gradient_norms, frame.has_gradient_norm)),
    )


def _range_of(values: Floats, reported: Bools) -> Range:
    known = values[reported]
    finite = known[np.isfinite(known)]
    lowest, highest = finite.min(initial=math.inf), finite.max(initial=-math.inf)
    return len(known), len(finite) == len(known), float(lowest), float(highest)
