"""A frame's columns as compiled code takes them: tables of numbers, each made in one pass that also looks them over."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.device_bank import DeviceBank
from evenkeel.services.detector.domain.frame_arrays import (
    COMPUTE_SECONDS,
    COUNTS,
    FIRST_OF_LAYOUT,
    FIRST_WAIT,
    FLOPS_OF_SQUARES,
    FLOPS_OF_TOKENS,
    HAS_FLOPS,
    HAS_LOSS,
    HAS_NORM,
    INCARNATIONS,
    LOSS_VALUES,
    NORM_VALUES,
    NUM_WAITS,
    OTHER_SECONDS,
    PLANNED,
    RANKS,
    SQUARE_SUMS,
    TOKEN_SUMS,
    WALL_SECONDS,
    WORK_KEYS,
)
from evenkeel.services.detector.domain.frame_layout import FrameLayout
from evenkeel.services.detector.domain.observation import FrameObservation
from evenkeel.services.detector.domain.reported import Range, range_of

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
_NOBODY: Floats = np.zeros(0)
_NO_COLUMNS: Ints = np.zeros((5, 0), dtype=np.int64)
_NO_FLAGS: Bools = np.zeros(0, dtype=np.bool_)


class FrameTable(NamedTuple):
    """A frame's numbers, and what one look at them says.

    Attributes:
        numbers: ``ROWS`` by entries.
        has_processes_of_before: Ranks and incarnations are those that the bank located last.
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


def table_of(frame: FrameObservation, layout: FrameLayout | None = None, bank: DeviceBank | None = None) -> FrameTable:
    """The table of a frame.

    Args:
        frame: The frame, of at least one entry.
        layout: The one that is known.
        bank: The devices, with the processes that they were located by last.
    """
    known = layout if layout is not None and layout.epoch == frame.epoch else None
    located = _NO_COLUMNS if bank is None else bank.located
    columns, work_keys, has_flops = (
        (_NO_COLUMNS, _NOBODY, _NO_FLAGS) if known is None else (known.columns, known.work_keys, known.has_flops)
    )
    numbers = np.empty((len(ROWS), len(frame)))
    same_processes, same_layout, is_planned, is_measured = _look_at(
        frame.numbers, frame.integers, frame.flags, located, columns, work_keys, has_flops, numbers
    )
    return FrameTable(
        numbers,
        same_processes and (bank is None or bank.is_placed_as(frame)),
        same_layout,
        is_planned,
        is_measured,
        (range_of(frame.losses, frame.has_loss), range_of(frame.gradient_norms, frame.has_gradient_norm)),
    )


@compiled
def _look_at(
    numbers: Floats,
    integers: Ints,
    flags: Bools,
    located: Ints,
    known: Ints,
    known_keys: Floats,
    known_flops: Bools,
    table: Floats,
) -> tuple[bool, bool, bool, bool]:
    """Writes a table; whether processes and layout are those that are known, it is planned, and it is measured."""
    count = numbers.shape[1]
    same_processes, same_layout = located.shape[1] == count, known.shape[1] == count
    is_planned, measured = False, True
    for entry in range(count):
        if same_processes:
            same_processes = (
                integers[RANKS, entry] == located[0, entry] and integers[INCARNATIONS, entry] == located[1, entry]
            )
        if same_layout:
            for row in range(len(known)):
                same_layout &= integers[FIRST_OF_LAYOUT + row, entry] == known[row, entry]
            same_layout &= numbers[WORK_KEYS, entry] == known_keys[entry]
            same_layout &= flags[HAS_FLOPS, entry] == known_flops[entry]
        is_planned |= flags[PLANNED, entry]
        seconds, wall = numbers[COMPUTE_SECONDS, entry], numbers[WALL_SECONDS, entry]
        others, square_flops = numbers[OTHER_SECONDS, entry], numbers[FLOPS_OF_SQUARES, entry]
        total = seconds + others + wall
        for row in range(NUM_WAITS):
            total += numbers[FIRST_WAIT + row, entry]
        measured &= seconds > 0.0 and math.isfinite(total)
        table[SECONDS, entry] = seconds
        table[FLOPS, entry] = numbers[FLOPS_OF_TOKENS, entry] + square_flops
        table[SQUARE_FLOPS, entry] = square_flops
        table[MICRO_BATCHES, entry] = integers[COUNTS, entry]
        table[OTHERS, entry], table[WALLS, entry] = others, wall
        table[TENSOR_WAIT, entry] = numbers[FIRST_WAIT + _TENSOR, entry]
        table[GRADIENT_WAIT, entry] = numbers[FIRST_WAIT + _GRADIENT, entry]
        table[VOTE_WAIT, entry] = numbers[FIRST_WAIT + _VOTE, entry]
        table[TOKENS, entry] = numbers[TOKEN_SUMS, entry]
        table[SQUARES, entry] = numbers[SQUARE_SUMS, entry]
        table[LOSS, entry] = numbers[LOSS_VALUES, entry] if flags[HAS_LOSS, entry] else math.nan
        table[GRADIENT_NORM, entry] = numbers[NORM_VALUES, entry] if flags[HAS_NORM, entry] else math.nan
    same_processes, same_layout = same_processes and count > 0, same_layout and count > 0
    return same_processes, same_layout, is_planned, measured
