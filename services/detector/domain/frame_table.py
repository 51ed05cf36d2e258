"""A frame's columns as compiled code takes them: tables of numbers, each made in one pass that also looks them over."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.device_bank import DeviceBank
from evenkeel.services.detector.domain.frame_arrays import (
    COMPUTE_SECONDS,
    COUNTS,
    DATA_SECONDS,
    FIRST_OF_LAYOUT,
    FIRST_WAIT,
    FLOPS_OF_SQUARES,
    FLOPS_OF_TOKENS,
    HAS_DATA,
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

LOOK = (
    *("has_processes_of_before", "has_layout_of_before", "is_planned", "is_measured", "data_share"),
    *(f"{name}_{what}" for what in ("losses", "norms") for name in ("count", "all_finite", "lowest", "highest")),
)
"""What a look at a frame says, see :class:`FrameTable`."""

DATA_SHARE, LOSSES, NORMS = LOOK.index("data_share"), LOOK.index("count_losses"), LOOK.index("count_norms")
"""The last two: where their ranges begin."""


class FrameTable(NamedTuple):
    """A frame's numbers, and what one look at them says.

    Attributes:
        numbers: ``ROWS`` by entries.
        has_processes_of_before: Ranks and incarnations are those that the bank located last.
        has_layout_of_before: Everybody holds what it did under the known layout.
        is_planned: Some entry had a planned pause or a reshape.
        is_measured: All times are numbers, compute seconds above 0.
        data_share: The largest share of the iteration that somebody's input took; below 0 where that is not known.
        ranges: Those of the losses and gradient norms that are reported.
    """

    numbers: Floats
    has_processes_of_before: bool
    has_layout_of_before: bool
    is_planned: bool
    is_measured: bool
    data_share: float
    ranges: tuple[Range, Range]


class FrameBlock(NamedTuple):
    """Tables of frames in a row, all of as many entries.

    Attributes:
        numbers: Frames by ``ROWS`` by entries.
        looks: Frames by ``LOOK``.
        iterations: Of each frame.
        num_alike: The first so many have the processes and the layout of before, are measured, and not planned.
    """

    numbers: Floats
    looks: Floats
    iterations: Ints
    num_alike: int

    def table(self, place: int) -> FrameTable:
        """The table of one of them."""
        look = self.looks[place].tolist()
        losses, norms = (
            (int(count), bool(finite), lowest, highest)
            for count, finite, lowest, highest in (look[LOSSES:NORMS], look[NORMS:])
        )
        same_processes, same_layout, planned, measured = map(bool, look[:DATA_SHARE])
        return FrameTable(
            self.numbers[place], same_processes, same_layout, planned, measured, look[DATA_SHARE], (losses, norms)
        )


def table_of(frame: FrameObservation, layout: FrameLayout | None = None, bank: DeviceBank | None = None) -> FrameTable:
    """The table of a frame; arguments as for :func:`block_of`."""
    return block_of([frame], layout, bank).table(0)


def block_of(
    frames: Sequence[FrameObservation], layout: FrameLayout | None = None, bank: DeviceBank | None = None
) -> FrameBlock:
    """Tables of some frames, up to the first that is not like those before.

    Args:
        frames: At least one, all of as many entries.
        layout: The one that is known.
        bank: The devices, with the processes that they were located by last.
    """
    known = layout if layout is not None and layout.epoch == frames[0].epoch else None
    located = _NO_COLUMNS if bank is None else bank.located
    columns, work_keys, has_flops = (
        (_NO_COLUMNS, _NOBODY, _NO_FLAGS) if known is None else (known.columns, known.work_keys, known.has_flops)
    )
    count, num_entries = len(frames), len(frames[0])
    numbers, looks = np.empty((count, len(ROWS), num_entries)), np.empty((count, len(LOOK)))
    num_alike = _look_over(
        _one_behind_the_other([frame.numbers for frame in frames]),
        _one_behind_the_other([frame.integers for frame in frames]),
        _one_behind_the_other([frame.flags for frame in frames]),
        located,
        columns,
        work_keys,
        has_flops,
        numbers,
        looks,
    )
    if bank is not None:
        num_alike = _num_in_place(frames, num_alike, looks, bank)
    return FrameBlock(numbers, looks, np.array([frame.iteration for frame in frames]), num_alike)


def _one_behind_the_other(tables: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Tables of as many rows and columns in one array, ``[tables, rows, columns]``; a single one is not copied."""
    if len(tables) == 1:
        return tables[0][np.newaxis]
    return np.concatenate(tables).reshape(len(tables), *tables[0].shape)


def _num_in_place(frames: Sequence[FrameObservation], num_alike: int, looks: Floats, bank: DeviceBank) -> int:
    """How many of the frames that are alike have their processes where they were located; says so of the next, too."""
    nodes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    for place, frame in enumerate(frames[: num_alike + 1]):
        # Frames of a job share their names as long as nobody moves.
        if frame.nodes is nodes and frame.devices is devices:
            continue
        if not bank.is_placed_as(frame):
            looks[place, 0] = False
            return min(place, num_alike)
        nodes, devices = frame.nodes, frame.devices
    return num_alike


@compiled
def _look_over(
    numbers: Floats,
    integers: Ints,
    flags: Bools,
    located: Ints,
    known: Ints,
    known_keys: Floats,
    known_flops: Bools,
    tables: Floats,
    looks: Floats,
) -> int:
    """Writes tables, and what looks say, but for the nodes and devices of processes.

    Args:
        numbers: Those of frames one behind the other, like the next two.
        integers: The same.
        flags: The same.
        located: Ranks and incarnations that were located last.
        known: Replicas to epochs of the known layout, as :class:`FrameLayout` keeps them, like the next two.
        known_keys: Its work keys.
        known_flops: Its flags.
        tables: Frames by ``ROWS`` by entries; written up to the first frame that is not like those before.
        looks: Frames by ``LOOK``; written as far.

    Returns:
        How many have the processes and the layout of before, are measured, and not planned, before one that is not.
    """
    for place in range(len(tables)):
        if not _look_at(
            numbers[place],
            integers[place],
            flags[place],
            located,
            known,
            known_keys,
            known_flops,
            tables[place],
            looks[place],
        ):
            return place
    return len(tables)


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
    look: Floats,
) -> bool:
    """One frame of :func:`_look_over`; whether it is like those before."""
    count = numbers.shape[1]
    same_processes, same_layout = located.shape[1] == count, known.shape[1] == count
    is_planned, measured, longest, most_input, knows_input = False, True, 0.0, 0.0, False
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
        longest = max(longest, wall)
        if flags[HAS_DATA, entry]:
            knows_input = True
            if math.isfinite(numbers[DATA_SECONDS, entry]):
                most_input = max(most_input, numbers[DATA_SECONDS, entry])
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
    look[0], look[1], look[2], look[3] = same_processes, same_layout, is_planned, measured
    look[DATA_SHARE] = most_input / max(longest, 1e-9) if knows_input else -1.0
    _write_range(range_of(numbers[LOSS_VALUES], flags[HAS_LOSS]), look[LOSSES:NORMS])
    _write_range(range_of(numbers[NORM_VALUES], flags[HAS_NORM]), look[NORMS:])
    return same_processes and same_layout and measured and not is_planned


@compiled
def _write_range(known: Range, found: Floats) -> None:
    found[0], found[1], found[2], found[3] = known
