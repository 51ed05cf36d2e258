"""Frames from the wire: as arrays over their ranks, ascending, with nothing in them that cannot be a measurement."""

import math
from typing import Any

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from numeric.arrays import Floats, Ints
from numeric.compiled import compiled
from services.common.kafka import RejectedRecordError
from services.common.raw_fields import raw_message_class
from services.detector.adapters.frame_columns import rows_of_columns
from services.detector.adapters.frame_entries import rows_of_entries
from services.detector.adapters.frame_rows import FrameRows, joined, picked
from services.detector.adapters.traffic_codec import traffic_from_protos
from services.detector.domain.observation import FrameObservation

RAW_FRAME = {"Frame": ["columns"]}
"""A frame's columns are taken as they come: they are read once, as arrays."""

_RawFrame = raw_message_class(pb.DESCRIPTOR, "Frame", RAW_FRAME)
# Beyond any seconds or operations there are, and far from where their products overflow.
_LARGEST_NUMBER = 1e40


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
    seconds, work = _usable(rows.seconds, rows.costs, rows.workloads)
    return FrameObservation(
        job_id=job_id,
        sequence=sequence,
        iteration=frame.iteration,
        epoch=frame.epoch,
        closed_at_unix_seconds=frame.closed_at_unix_seconds,
        missing_ranks=tuple(frame.missing_ranks),
        ranks=rows.ranks,
        incarnations=rows.incarnations,
        nodes=tuple(rows.nodes),
        devices=tuple(rows.devices),
        epochs=rows.epochs,
        planned=rows.marks != pb.MARK_UNSPECIFIED,
        compute_seconds=seconds[:, 0],
        other_seconds=seconds[:, 1],
        wall_seconds=seconds[:, 2],
        wait_seconds=seconds[:, 3:7],
        data_seconds=seconds[:, 7],
        replicas=rows.positions[:, 0],
        stages=rows.positions[:, 1],
        shards=rows.positions[:, 2],
        losses=rows.losses,
        has_loss=rows.has_loss,
        gradient_norms=rows.gradient_norms,
        has_gradient_norm=rows.has_gradient_norm,
        token_flops=work[:, 0],
        square_flops=work[:, 1],
        has_flops=work[:, 2] > 0,
        num_micro_batches=work[:, 3].astype(np.int64),
        tokens=work[:, 4],
        sums_of_squares=work[:, 5],
        work_keys=work[:, 6],
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
        if not _rise(rows.ranks):
            raise RejectedRecordError("bad_ranks", f"ranks of frame {frame.iteration} appear twice")
    if len(rows.ranks) and rows.ranks[0] < 0:
        raise RejectedRecordError("bad_ranks", f"ranks of frame {frame.iteration} are negative")
    return rows


def _rise(ranks: Ints) -> bool:
    return bool((ranks[1:] > ranks[:-1]).all())


@compiled
def _usable(seconds: Floats, costs: Floats, workloads: Floats) -> tuple[Floats, Floats]:
    """What can be a measurement: one rank's nonsense must not spoil its frame.

    A loop that does not say what its model costs has tokens in place of operations; where it does not say those either,
    each of its iterations is like any other.

    Args:
        seconds: ``FrameRows.seconds``.
        costs: ``FrameRows.costs``.
        workloads: ``FrameRows.workloads``.

    Returns:
        Seconds, NaN where they cannot be; and in columns token flops, square flops, whether they are known,
        micro-batches, tokens, sum of squares, key of the share, all 0 where one of them cannot be.
    """
    checked, work = np.empty_like(seconds), np.zeros((len(costs), 7))
    for e in range(len(costs)):
        for column in range(seconds.shape[1]):
            value = seconds[e, column]
            checked[e, column] = value if 0.0 <= value < _LARGEST_NUMBER else np.nan
        passes, is_known, key = costs[e, 2], costs[e, 3], costs[e, 4]
        count, tokens, squares = workloads[e, 0], workloads[e, 1], workloads[e, 2]
        token_flops, square_flops = tokens if tokens > 0 else 1.0, 0.0
        if is_known > 0:
            token_flops, square_flops = costs[e, 0] * tokens * passes, costs[e, 1] * squares * passes
        elif not tokens > 0:
            count = max(count, 1.0)
        row = (token_flops, square_flops, is_known, count, tokens, squares, key)
        can_be = True
        for value in row:
            can_be = can_be and abs(value) < _LARGEST_NUMBER
        if can_be:
            for column, value in enumerate(row):
                work[e, column] = value
    return checked, work
