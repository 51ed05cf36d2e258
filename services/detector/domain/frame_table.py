"""A frame's columns as compiled code takes them: tables of numbers, each made in one pass that also looks them over."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.device_bank import DeviceBank
from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.observation import FrameObservation
from services.detector.domain.reported import Range, range_of

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
    numbers, looks = np.empty((len(frames), len(ROWS), len(frames[0]))), np.empty((len(frames), len(LOOK)))
    known = layout if layout is not None and layout.epoch == frames[0].epoch else None
    located = _NO_COLUMNS if bank is None else bank.located
    columns = _NO_COLUMNS if known is None else known.columns
    work_keys, has_flops = (_NOBODY, _NO_FLAGS) if known is None else (known.work_keys, known.has_flops)
    num_alike = 0
    for place, frame in enumerate(frames):
        is_alike = _look_over(
            frame.ranks,
            frame.incarnations,
            located,
            frame.replicas,
            frame.stages,
            frame.shards,
            frame.num_micro_batches,
            frame.epochs,
            frame.work_keys,
            frame.has_flops,
            columns,
            work_keys,
            has_flops,
            frame.planned,
            frame.compute_seconds,
            frame.other_seconds,
            frame.wall_seconds,
            frame.wait_seconds,
            frame.token_flops,
            frame.square_flops,
            frame.tokens,
            frame.sums_of_squares,
            _NOBODY if frame.data_seconds is None else frame.data_seconds,
            frame.losses,
            frame.has_loss,
            frame.gradient_norms,
            frame.has_gradient_norm,
            numbers[place],
            looks[place],
        )
        if bank is not None and looks[place, 0] and not bank.is_placed_as(frame):
            looks[place, 0] = is_alike = False
        if not is_alike:
            break
        num_alike += 1
    return FrameBlock(numbers, looks, np.array([frame.iteration for frame in frames]), num_alike)


@compiled
def _look_over(
    ranks: Ints,
    incarnations: Ints,
    located: Ints,
    replicas: Ints,
    stages: Ints,
    shards: Ints,
    counts: Ints,
    epochs: Ints,
    work_keys: Floats,
    has_flops: Bools,
    known: Ints,
    known_keys: Floats,
    known_flops: Bools,
    planned: Bools,
    seconds: Floats,
    others: Floats,
    walls: Floats,
    waits: Floats,
    token_flops: Floats,
    square_flops: Floats,
    tokens: Floats,
    squares: Floats,
    data: Floats,
    losses: Floats,
    has_loss: Bools,
    norms: Floats,
    has_norm: Bools,
    table: Floats,
    look: Floats,
) -> bool:
    """Writes a table, and what a look says, but for the nodes and devices of processes.

    Args:
        ranks: Columns of a frame, like all that are not named here.
        incarnations: The same.
        located: Ranks and incarnations that were located last.
        replicas: From here to ``has_flops`` what makes a layout.
        stages: The same.
        shards: The same.
        counts: Micro-batches.
        epochs: The same.
        work_keys: The same.
        has_flops: The same.
        known: Replicas to epochs of the known layout, as :class:`FrameLayout` keeps them, like the next two.
        known_keys: Its work keys.
        known_flops: Its flags.
        planned: Whether there was a planned pause.
        seconds: Compute seconds.
        others: Seconds of optimizer and input.
        walls: Seconds of the whole iteration.
        waits: One row an entry: tensor, pipeline, gradient, vote.
        token_flops: Operations that grow with tokens.
        square_flops: Operations that grow with squared lengths.
        tokens: Tokens.
        squares: Sums of squared lengths.
        data: Seconds of input; nothing where they are not known.
        losses: See :func:`range_of`, like the rest.
        has_loss: The same.
        norms: The same.
        has_norm: The same.
        table: ``ROWS`` by entries; written.
        look: One number each of ``LOOK``; written.

    Returns:
        Whether the frame has the processes and the layout of before, is measured, and not planned.
    """
    count = len(ranks)
    same_processes, same_layout = located.shape[1] == count, known.shape[1] == count
    is_planned, measured, longest, most_input = False, True, 0.0, 0.0
    for entry in range(count):
        if same_processes:
            same_processes = ranks[entry] == located[0, entry] and incarnations[entry] == located[1, entry]
        if same_layout:
            same_layout = (
                replicas[entry] == known[0, entry]
                and stages[entry] == known[1, entry]
                and shards[entry] == known[2, entry]
                and counts[entry] == known[3, entry]
                and epochs[entry] == known[4, entry]
                and work_keys[entry] == known_keys[entry]
                and has_flops[entry] == known_flops[entry]
            )
        is_planned |= planned[entry]
        total = seconds[entry] + others[entry] + walls[entry]
        for place in range(waits.shape[1]):
            total += waits[entry, place]
        measured &= seconds[entry] > 0.0 and math.isfinite(total)
        longest = max(longest, walls[entry])
        if len(data) and math.isfinite(data[entry]):
            most_input = max(most_input, data[entry])
        table[SECONDS, entry] = seconds[entry]
        table[FLOPS, entry] = token_flops[entry] + square_flops[entry]
        table[SQUARE_FLOPS, entry] = square_flops[entry]
        table[MICRO_BATCHES, entry] = counts[entry]
        table[OTHERS, entry], table[WALLS, entry] = others[entry], walls[entry]
        table[TENSOR_WAIT, entry] = waits[entry, _TENSOR]
        table[GRADIENT_WAIT, entry], table[VOTE_WAIT, entry] = waits[entry, _GRADIENT], waits[entry, _VOTE]
        table[TOKENS, entry], table[SQUARES, entry] = tokens[entry], squares[entry]
        table[LOSS, entry] = losses[entry] if has_loss[entry] else math.nan
        table[GRADIENT_NORM, entry] = norms[entry] if has_norm[entry] else math.nan
    same_processes, same_layout = same_processes and count > 0, same_layout and count > 0
    look[0], look[1], look[2], look[3] = same_processes, same_layout, is_planned, measured
    look[DATA_SHARE] = most_input / max(longest, 1e-9) if len(data) else -1.0
    _write_range(range_of(losses, has_loss), look[LOSSES:NORMS])
    _write_range(range_of(norms, has_norm), look[NORMS:])
    return same_processes and same_layout and measured and not is_planned


@compiled
def _write_range(known: Range, found: Floats) -> None:
    found[0], found[1], found[2], found[3] = known
