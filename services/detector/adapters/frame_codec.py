"""Frames from the wire: as arrays over their ranks, ascending, with nothing in them that cannot be a measurement."""

import math
from typing import Any

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.common.kafka import RejectedRecordError
from evenkeel.services.common.raw_fields import raw_message_class
from evenkeel.services.detector.adapters.frame_columns import rows_of_columns
from evenkeel.services.detector.adapters.frame_entries import rows_of_entries
from evenkeel.services.detector.adapters.frame_rows import FrameRows, joined, picked
from evenkeel.services.detector.adapters.traffic_codec import traffic_from_protos
from evenkeel.services.detector.domain.frame_arrays import (
    COMPUTE_SECONDS,
    COUNTS,
    DATA_SECONDS,
    EPOCHS,
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
    empty_tables,
)
from evenkeel.services.detector.domain.observation import FrameObservation
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

RAW_FRAME = {"Frame": ["columns"]}
"""A frame's columns are taken as they come: they are read once, as arrays."""

_RawFrame = raw_message_class(pb.DESCRIPTOR, "Frame", RAW_FRAME)
# Beyond any seconds or operations there are, and far from where their products overflow.
_LARGEST_NUMBER = 1e40
_SECONDS = (COMPUTE_SECONDS, OTHER_SECONDS, WALL_SECONDS, *range(FIRST_WAIT, FIRST_WAIT + NUM_WAITS), DATA_SECONDS)
"""The row of each column of ``FrameRows.seconds``."""


def frame_from_proto(job_id: str, sequence: int, frame: pb.Frame) -> FrameObservation:
    """A frame as arrays.

    Raises:
        RejectedRecordError: A rank appears twice, a time is not a number, or columns do not fit together.
    """
    return frame_from_raw(job_id, sequence, _RawFrame.FromString(frame.SerializeToString()))


def frame_from_raw(job_id: str, sequence: int, frame: Any) -> FrameObservation:
    """A frame as arrays.

    Args:
        job_id: Its job.
        sequence: Its number.
        frame: The message, with ``RAW_FRAME`` as bytes.

    Raises:
        RejectedRecordError: A rank appears twice, a time is not a number, or columns do not fit together.
    """
    if not 0.0 <= frame.closed_at_unix_seconds < math.inf:
        raise RejectedRecordError("bad_time", f"{frame.closed_at_unix_seconds} is not a time in Unix seconds")
    rows = _rows_of(frame)
    numbers, integers, flags = empty_tables(len(rows.ranks))
    integers[RANKS], integers[INCARNATIONS], integers[EPOCHS] = rows.ranks, rows.incarnations, rows.epochs
    integers[FIRST_OF_LAYOUT:COUNTS] = rows.positions.T
    flags[PLANNED], flags[HAS_LOSS], flags[HAS_NORM] = rows.marks, rows.has_loss, rows.has_gradient_norm
    write_usable(
        rows.seconds,
        rows.costs,
        rows.workloads,
        rows.losses,
        rows.gradient_norms,
        numbers,
        integers[COUNTS],
        flags,
    )
    return FrameObservation(
        job_id=job_id,
        sequence=sequence,
        iteration=frame.iteration,
        epoch=frame.epoch,
        closed_at_unix_seconds=frame.closed_at_unix_seconds,
        missing_ranks=tuple(frame.missing_ranks),
        nodes=tuple(rows.nodes),
        devices=tuple(rows.devices),
        numbers=numbers,
        integers=integers,
        flags=flags,
        micro_batches=rows.micro_batches,
        traffic=traffic_from_protos(rows.traffic, rows.started_at_unix_seconds),
    )


def _rows_of(frame: Any) -> FrameRows:
    """All entries of a frame, ascending by rank."""
    in_columns = bool(frame.columns)
    rows = rows_of_columns(frame.columns, frame.epoch) if in_columns else rows_of_entries(frame.entries)
    if in_columns and frame.entries:
        rows = joined(rows, rows_of_entries(frame.entries))
    if not _rise(rows.ranks):
        rows = picked(rows, np.argsort(rows.ranks, kind="stable"))
    check_ranks(rows.ranks, frame.iteration)
    return rows


def check_ranks(ranks: Ints, iteration: int) -> None:
    """Returns if a frame's ranks are in order, each once.

    Raises:
        RejectedRecordError: They are not, or are negative.
    """
    if not _rise(ranks):
        raise RejectedRecordError("bad_ranks", f"ranks of frame {iteration} appear twice")
    if len(ranks) and ranks[0] < 0:
        raise RejectedRecordError("bad_ranks", f"ranks of frame {iteration} are negative")


def _rise(ranks: Ints) -> bool:
    return bool((ranks[1:] > ranks[:-1]).all())


@compiled
def write_usable(
    seconds: Floats,
    costs: Floats,
    workloads: Floats,
    losses: Floats,
    gradient_norms: Floats,
    numbers: Floats,
    counts: Ints,
    flags: Bools,
) -> None:
    """Writes what can be a measurement: one rank's nonsense must not spoil its frame.

    A loop that does not say what its model costs has tokens in place of operations; where it does not say those either,
    each of its iterations is like any other. Seconds are NaN where they cannot be; flops, micro-batches, tokens, sum of
    squares and key of the share all 0 where one of them cannot be.

    Args:
        seconds: ``FrameRows.seconds``.
        costs: ``FrameRows.costs``.
        workloads: ``FrameRows.workloads``.
        losses: ``FrameRows.losses``.
        gradient_norms: ``FrameRows.gradient_norms``.
        numbers: ``FrameObservation.numbers``; written.
        counts: Its micro-batches, one an entry; written.
        flags: ``FrameObservation.flags``, of which those of flops and of input are written.
    """
    for e in range(len(costs)):
        for column in range(len(_SECONDS)):
            value = seconds[e, column]
            numbers[_SECONDS[column], e] = value if 0.0 <= value < _LARGEST_NUMBER else np.nan
        passes, is_known, key = costs[e, 2], costs[e, 3], costs[e, 4]
        count, tokens, squares = workloads[e, 0], workloads[e, 1], workloads[e, 2]
        token_flops, square_flops = tokens if tokens > 0 else 1.0, 0.0
        if is_known > 0:
            token_flops, square_flops = costs[e, 0] * tokens * passes, costs[e, 1] * squares * passes
        elif not tokens > 0:
            count = max(count, 1.0)
        can_be = True
        for value in (token_flops, square_flops, is_known, count, tokens, squares, key):
            can_be = can_be and abs(value) < _LARGEST_NUMBER
        numbers[FLOPS_OF_TOKENS, e] = token_flops if can_be else 0.0
        numbers[FLOPS_OF_SQUARES, e] = square_flops if can_be else 0.0
        numbers[TOKEN_SUMS, e] = tokens if can_be else 0.0
        numbers[SQUARE_SUMS, e] = squares if can_be else 0.0
        numbers[WORK_KEYS, e] = key if can_be else 0.0
        numbers[LOSS_VALUES, e], numbers[NORM_VALUES, e] = losses[e], gradient_norms[e]
        counts[e] = int(count) if can_be else 0
        flags[HAS_FLOPS, e], flags[HAS_DATA, e] = can_be and is_known > 0, True
