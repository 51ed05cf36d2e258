"""Frames that closed together to the wire: what is the same in all of them once, and no step for each."""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.services.common.raw_fields import raw_message_class
from evenkeel.services.telemetry.adapters.frame_writer import DTYPE_OF, PACKED, places_on_wire
from evenkeel.services.telemetry.adapters.picked_run import PickedRun
from evenkeel.services.telemetry.domain.frame_entries import BlockRows, FrameEntries
from evenkeel.services.telemetry.domain.observed import ClosedFrame, Numbered
from evenkeel.services.telemetry.domain.sample_block import COLUMNS, SEAT, SampleBlock
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

MOST_SAMPLES = 8192
"""In one run, which is about a megabyte."""

_TIMES = ("iterations", "closed_at_unix_seconds", "last_sample_at_unix_seconds")
_RawObservation = raw_message_class(pb.DESCRIPTOR, "Observation", {"FrameRun": _TIMES, "FrameColumns": PACKED})
_SEATS = frozenset(COLUMNS[SEAT])

Told = Sequence[Numbered]


def in_runs(job_id: str, numbered: Told) -> Iterator[tuple[Told, bytes]]:
    """What was observed, in its order, what one record is to tell at a time.

    Args:
        job_id: The job.
        numbered: What was observed of it.

    Yields:
        Frames, more than one, and the serialised observation of their run; or one observation, and no bytes.
    """
    first = 0
    while first < len(numbered):
        rows = _rows_alike(numbered, first)
        group = numbered[first : first + max(len(rows), 1)]
        first += len(group)
        if len(group) == 1:
            yield group, b""
            continue
        picked = PickedRun(rows[0].block, np.stack([each.rows for each in rows]))
        borders = [*np.flatnonzero(~picked.is_like_before).tolist(), len(group)]
        for begin, end in pairwise(borders):
            told = group[begin:end]
            yield told, _run_observation(job_id, told, picked, begin, end) if len(told) > 1 else b""


def _rows_alike(numbered: Told, first: int) -> list[BlockRows]:
    """The samples of some frames from the first one on that came in one block and are as many; of at most one run."""
    found: list[BlockRows] = []
    begun: tuple[SampleBlock, int, int] | None = None
    for each in islice(numbered, first, None):
        frame = each.observed
        if not isinstance(frame, ClosedFrame) or frame.missing_ranks or not isinstance(frame.entries, FrameEntries):
            break
        rows = frame.entries.only_crowd
        if rows is None or rows.block.traffic or (len(found) + 1) * len(rows.rows) > MOST_SAMPLES:
            break
        if begun is None:
            begun = rows.block, len(rows.rows), frame.epoch
        elif rows.block is not begun[0] or (len(rows.rows), frame.epoch) != begun[1:]:
            break
        found.append(rows)
    return found


def _run_observation(job_id: str, told: Told, picked: PickedRun, begin: int, end: int) -> bytes:
    """The serialised observation of a run: some of the frames that were picked, of which all are like the first."""
    message = _RawObservation(job_id=job_id, sequence=told[0].sequence)
    run, columns = message.run, message.run.columns
    frames: list[Any] = [each.observed for each in told]
    run.epoch = frames[0].epoch
    run.iterations = np.array([each.iteration for each in frames], dtype="<i8").tobytes()
    run.closed_at_unix_seconds = np.array([each.closed_at_seconds for each in frames], dtype="<f8").tobytes()
    run.last_sample_at_unix_seconds = np.array([each.last_sample_at_seconds for each in frames], dtype="<f8").tobytes()
    columns.ranks = picked.ranks[begin].tobytes()
    names, columns.node_of, columns.device_of = places_on_wire(
        picked.names, picked.nodes[begin].tobytes(), picked.devices[begin].tobytes()
    )
    columns.names.extend(names)
    if picked.incarnations[begin].any():
        columns.incarnations = picked.incarnations[begin].tobytes()
    for name, values in (
        ("workload_of", picked.workload_of),
        ("has_loss", picked.has[0]),
        ("has_gradient_norm", picked.has[1]),
        *zip(COLUMNS, picked.numbers, strict=True),
    ):
        _write(columns, name, values[begin : begin + 1] if name in _SEATS else values[begin:end])
    first_list, stop_list = int(picked.num_lists[:begin].sum()), int(picked.num_lists[:end].sum())
    sizes = picked.sizes[first_list:stop_list]
    first = int(picked.sizes[:first_list].sum())
    named = slice(first, first + int(sizes.sum()))
    columns.workload_sizes = sizes.tobytes()
    for name, values in (
        ("micro_batch_indexes", picked.indexes),
        ("micro_batch_tokens", picked.tokens),
        ("micro_batch_sums_of_squares", picked.squares),
    ):
        if values[named].any():
            setattr(columns, name, values[named].tobytes())
    raw: bytes = message.SerializeToString()
    return raw


def _write(columns: Any, name: str, values: npt.NDArray[Any]) -> None:
    """A column, one row a frame: nothing of zeros, and one row where all are the same."""
    if not values.any():
        return
    bits = values.view(np.uint64) if values.itemsize == 8 else values
    if (bits == bits[0]).all():
        values = values[:1]
    setattr(columns, name, values.astype(DTYPE_OF[name], copy=False).tobytes())
