"""Runs of frames from the wire: their columns are read at once, and each frame is a part of the same tables."""

from typing import Any

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.common.kafka import RejectedRecordError
from evenkeel.services.detector.adapters.frame_codec import check_ranks, write_usable
from evenkeel.services.detector.adapters.frame_columns import measured_of, seats_of
from evenkeel.services.detector.adapters.packed_columns import read_columns
from evenkeel.services.detector.domain.frame_arrays import (
    COUNTS,
    EPOCHS,
    FIRST_OF_LAYOUT,
    HAS_LOSS,
    HAS_NORM,
    INCARNATIONS,
    PLANNED,
    RANKS,
    empty_tables,
)
from evenkeel.services.detector.domain.observation import FrameObservation

RAW_RUN = ("iterations", "closed_at_unix_seconds", "last_sample_at_unix_seconds", "columns")
"""Fields of a run that are taken as the bytes that they are."""

# Columns of zeros are left out, and others told once, so that a few bytes may claim any number.
_MOST_ENTRIES = 1 << 20


def frames_from_raw(job_id: str, sequence: int, run: Any) -> tuple[list[FrameObservation], float]:
    """The frames of a run, and when the newest sample of them reached the telemetry service, Unix seconds.

    Args:
        job_id: Its job.
        sequence: Number of its first frame.
        run: The message, with ``RAW_RUN`` as bytes.

    Raises:
        RejectedRecordError: It has no frames, a time is not a number, a rank appears twice, or columns do not fit.
    """
    num_frames = len(run.iterations) // 8
    if not num_frames or {len(getattr(run, name)) for name in RAW_RUN[:3]} != {8 * num_frames}:
        raise RejectedRecordError("bad_columns", f"a run of {num_frames} frames that does not say when each closed")
    iterations = np.frombuffer(run.iterations, dtype="<i8").tolist()
    closed_at, last_at = (np.frombuffer(raw, dtype="<f8") for raw in (getattr(run, name) for name in RAW_RUN[1:3]))
    if not ((closed_at >= 0.0) & (closed_at < np.inf)).all():
        raise RejectedRecordError("bad_time", f"{closed_at.tolist()[:8]} are not all times in Unix seconds")
    columns = read_columns(run.columns)
    seats = seats_of(columns)
    num_entries = len(seats.ranks)
    if num_frames * num_entries > _MOST_ENTRIES:
        raise RejectedRecordError("bad_columns", f"{num_frames} frames of {num_entries} ranks in one run")
    check_ranks(seats.ranks, iterations[0])
    measured = measured_of(columns, num_entries, num_frames)
    numbers, integers, flags = empty_tables(num_entries, num_frames)
    integers[:, RANKS], integers[:, INCARNATIONS], integers[:, EPOCHS] = seats.ranks, seats.incarnations, run.epoch
    integers[:, FIRST_OF_LAYOUT:COUNTS] = seats.positions.T
    shape = (num_frames, num_entries)
    flags[:, PLANNED] = measured.marks.reshape(shape)
    flags[:, HAS_LOSS] = measured.has_loss.reshape(shape)
    flags[:, HAS_NORM] = measured.has_gradient_norm.reshape(shape)
    _write_frames(
        measured.seconds,
        seats.costs,
        measured.workloads,
        measured.losses,
        measured.gradient_norms,
        numbers,
        integers,
        flags,
    )
    frames, begin = [], 0
    times = zip(iterations, closed_at.tolist(), measured.ends.tolist(), strict=True)
    for place, (iteration, closed_at_seconds, end) in enumerate(times):
        frames.append(
            FrameObservation(
                job_id=job_id,
                sequence=sequence + place,
                iteration=iteration,
                epoch=run.epoch,
                closed_at_unix_seconds=closed_at_seconds,
                nodes=seats.nodes,
                devices=seats.devices,
                numbers=numbers[place],
                integers=integers[place],
                flags=flags[place],
                micro_batches=measured.micro_batches[begin:end],
            )
        )
        begin = end
    return frames, float(last_at.max())


@compiled
def _write_frames(
    seconds: Floats,
    costs: Floats,
    workloads: Floats,
    losses: Floats,
    gradient_norms: Floats,
    numbers: Floats,
    integers: Ints,
    flags: Bools,
) -> None:
    """Writes what can be a measurement, as :func:`write_usable` does, of frames one after the other.

    Args:
        seconds: ``FrameRows.seconds`` of all frames, like the next ones but for ``costs``.
        costs: ``FrameRows.costs``, which are those of each frame.
        workloads: ``FrameRows.workloads``.
        losses: ``FrameRows.losses``.
        gradient_norms: ``FrameRows.gradient_norms``.
        numbers: Tables of the frames, like the next two; written.
        integers: The same; micro-batches written.
        flags: The same; those of flops and of input written.
    """
    size = len(costs)
    for frame in range(len(numbers)):
        first, stop = frame * size, (frame + 1) * size
        write_usable(
            seconds[first:stop],
            costs,
            workloads[first:stop],
            losses[first:stop],
            gradient_norms[first:stop],
            numbers[frame],
            integers[frame, COUNTS],
            flags[frame],
        )
