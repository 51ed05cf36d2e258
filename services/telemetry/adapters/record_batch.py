"""A batch of records at once: what thousands of ranks send becomes arrays, and what is odd is looked at one by one.

Whatever is not plain goes through :func:`~services.telemetry.adapters.record_decoder.decode_record`, whose word counts,
and is written anew as plainly as can be: both ways give the same of the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from services.common.kafka import ConsumedRecord, RejectedRecordError, Rejection
from services.telemetry.adapters.block_builder import BlockBuilder, SampleSources
from services.telemetry.adapters.record_decoder import (
    check_envelope,
    decode_record,
    event_from_proto,
    newest_progress,
)
from services.telemetry.adapters.wire_cursor import Wire
from services.telemetry.domain.observed import ArrivedEvent, ArrivedProgress, ArrivedSample
from services.telemetry.domain.sample_block import Bools, Ints, SampleBlock, SampleRow
from services.telemetry.domain.validate import (
    MAX_INCARNATION,
    MAX_RANK,
    MAX_SAMPLES,
    HostileRecordError,
    check_progress,
)

_MAX_NAMES = 100_000
_NUMBER = {field.name: field.number for field in pb.Record.DESCRIPTOR.fields}


class ArrivedRun(NamedTuple):
    """Consecutive records of one job. Only the last one of a run may carry progress, and events have a run alone.

    Attributes:
        job_id: The job.
        newest_offset: Offset of the last record.
        numbers: Rank, incarnation, record number and samples dropped so far of each record.
        first_row: Row of the first sample in the batch's block.
        samples: Samples of all of them, in order.
        progress: The newest progress of the last record.
        events: Events of the only record.
    """

    job_id: str
    newest_offset: int
    numbers: list[tuple[int, int, int, int]]
    first_row: int
    samples: list[ArrivedSample]
    progress: ArrivedProgress | None
    events: list[ArrivedEvent]


class ArrivedBatch(NamedTuple):
    """What became of a batch: its records in order, their samples as arrays, and what is poison."""

    runs: list[ArrivedRun]
    block: SampleBlock
    rejections: list[Rejection]


@dataclass(slots=True)
class _Kept:
    """A record that is not refused so far, its plain bytes, and the message if it had to be decoded."""

    record: ConsumedRecord
    value: bytes
    message: pb.Record | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What was read across records: one item a record, but for the block.

    Attributes:
        job_ids: The job.
        numbers: Rank, incarnation, record number and samples dropped so far.
        num_samples: How many of the block's rows are its samples.
        progress: Its progress reports, as they are on the wire.
        block: All samples.
        believed: False where a closer look is needed.
        strange: Job and place as they are on the wire where one of them was not known; empty otherwise.
    """

    job_ids: list[str]
    numbers: list[tuple[int, int, int, int]]
    num_samples: list[int]
    progress: list[bytes]
    block: SampleBlock
    believed: Bools
    strange: list[bytes]


class RecordBatchDecoder:
    """Decodes batches; remembers the names that it has checked."""

    def __init__(self) -> None:
        self._job_ids: dict[bytes, str] = {}
        self._places: dict[bytes, tuple[str, str]] = {b"": ("", "")}

    def decode(self, records: Sequence[ConsumedRecord]) -> ArrivedBatch:
        """The records that can be believed, and the others with the reason why not."""
        rejections: list[Rejection] = []
        kept: list[_Kept] = []
        for record in records:
            try:
                kept.append(_Kept(record, check_envelope(record)))
            except RejectedRecordError as error:
                rejections.append(Rejection(record=record, error=error.error, reason=error.reason))
        read, again = self._read(kept), False
        while not read.believed.all():
            kept = self._second_look(kept, read, rejections, every=again)
            read, again = self._read(kept), True
        return ArrivedBatch(_runs(kept, read), read.block, rejections)

    def _read(self, kept: Sequence[_Kept]) -> _Read:
        wire = Wire([each.value for each in kept])
        cursor, buffer = wire.cursor(), wire.buffer
        job_begins, job_ends = cursor.texts(_NUMBER["job_id"])
        ranks, incarnations = cursor.int32s(_NUMBER["rank"]), cursor.int32s(_NUMBER["incarnation"])
        sequences, dropped = cursor.int64s(_NUMBER["sequence"]), cursor.int64s(_NUMBER["num_dropped"])
        place_begins = cursor.at
        for name in ("node", "device"):
            cursor.texts(_NUMBER[name])
        place_ends = cursor.at
        owners, begins, ends = cursor.items(_NUMBER["samples"], most=MAX_SAMPLES)
        progress_begins, progress_ends = cursor.spans(_NUMBER["progress"], most=MAX_SAMPLES)
        cursor.end()
        num_samples = np.bincount(owners, minlength=len(kept))
        believed = cursor.plain & (ranks <= MAX_RANK) & (incarnations <= MAX_INCARNATION)
        job_ids, nodes, devices, strange = [], [], [], []
        for row, (each, begin, end, place_begin, place_end) in enumerate(
            zip(kept, job_begins.tolist(), job_ends.tolist(), place_begins.tolist(), place_ends.tolist(), strict=True)
        ):
            job, where = buffer[begin:end], buffer[place_begin:place_end]
            job_id, place = self._job_ids.get(job), self._places.get(where)
            unknown = b""
            if place is None or job_id is None or each.record.key != job:
                believed[row] = False
                unknown = b"/".join((job, where, each.record.key or b""))
                place, job_id = ("", ""), ""
            strange.append(unknown)
            job_ids.append(job_id)
            nodes.append(place[0])
            devices.append(place[1])
        offsets = np.fromiter((each.record.offset for each in kept), dtype=np.int64, count=len(kept))
        sources = SampleSources(
            begins=begins,
            ends=ends,
            ranks=ranks[owners],
            incarnations=incarnations[owners],
            offsets=offsets[owners],
            nodes=list(map(nodes.__getitem__, owners.tolist())),
            devices=list(map(devices.__getitem__, owners.tolist())),
        )
        block, credible = BlockBuilder(wire).build(sources)
        believed[owners[~credible]] = False
        progress = [
            buffer[begin:end] for begin, end in zip(progress_begins.tolist(), progress_ends.tolist(), strict=True)
        ]
        _check_progress(progress, num_samples, believed)
        return _Read(
            job_ids=job_ids,
            numbers=list(zip(ranks.tolist(), incarnations.tolist(), sequences.tolist(), dropped.tolist(), strict=True)),
            num_samples=num_samples.tolist(),
            progress=progress,
            block=block,
            believed=believed,
            strange=strange,
        )

    def _second_look(
        self, kept: Sequence[_Kept], read: _Read, rejections: list[Rejection], *, every: bool
    ) -> list[_Kept]:
        """What is odd is decoded one by one, and refused or made plain; the others stay as they are.

        Args:
            kept: The records.
            read: What was read of them.
            rejections: Gets those that are refused.
            every: Leave none for a third look: else the first one of each unknown place speaks for the others.
        """
        still, looked_at = [], {b""}
        for each, plain, unknown in zip(kept, read.believed.tolist(), read.strange, strict=True):
            if plain or (not every and unknown and unknown in looked_at):
                still.append(each)
                continue
            looked_at.add(unknown)
            try:
                if each.message is not None:
                    raise RejectedRecordError("unreadable", "a record that says so much that it cannot be taken in")
                still.append(self._made_plain(each.record))
            except RejectedRecordError as error:
                rejections.append(Rejection(record=each.record, error=error.error, reason=error.reason))
        return still

    def _made_plain(self, record: ConsumedRecord) -> _Kept:
        """Raises RejectedRecordError for what cannot be believed."""
        message = decode_record(record)
        if len(self._places) + len(self._job_ids) >= _MAX_NAMES:
            self._places, self._job_ids = {b"": ("", "")}, {}
        self._job_ids[message.job_id.encode()] = message.job_id
        place = pb.Record(node=message.node, device=message.device).SerializeToString()
        self._places[place] = (message.node, message.device)
        plain = pb.Record()
        plain.CopyFrom(message)
        plain.DiscardUnknownFields()
        del plain.events[:], plain.progress[:]
        plain.rank = max(plain.rank, 0)  # a launcher has no samples
        return _Kept(record, plain.SerializeToString(), message)


def _check_progress(raws: Sequence[bytes], num_samples: Ints, believed: Bools) -> None:
    for row, raw in enumerate(raws):
        if raw:
            try:
                # What was cut out is a record of nothing but its progress.
                reports = pb.Record.FromString(raw).progress
                for report in reports:
                    check_progress(report)
                if len(reports) + num_samples[row] > MAX_SAMPLES:
                    believed[row] = False
            except (HostileRecordError, DecodeError):
                believed[row] = False


def _runs(kept: Sequence[_Kept], read: _Read) -> list[ArrivedRun]:
    block = read.block
    # A tuple a sample, made without a call of Python's: tens of thousands come a second.
    payloads = map(tuple.__new__, repeat(SampleRow), zip(repeat(block), range(len(block)), strict=False))
    columns = zip(
        block.ranks.tolist(),
        block.incarnations.tolist(),
        block.nodes,
        block.devices,
        block.epochs.tolist(),
        block.iterations.tolist(),
        block.numbers[:, 1].tolist(),
        block.offsets.tolist(),
        payloads,
        strict=True,
    )
    samples: list[ArrivedSample] = list(map(tuple.__new__, repeat(ArrivedSample), columns))
    runs, first, first_row, row = [], 0, 0, 0
    for index, (each, job_id, count) in enumerate(zip(kept, read.job_ids, read.num_samples, strict=True)):
        row += count
        if index + 1 < len(kept) and not _ends_run(kept, read, index):
            continue
        numbers, message = read.numbers[first : index + 1], each.message
        progress: ArrivedProgress | None = None
        events: list[ArrivedEvent] = []
        if message is not None:
            numbers[-1] = (message.rank, *numbers[-1][1:])
            progress = newest_progress(message.rank, message.incarnation, message.progress)
            events = [event_from_proto(event) for event in message.events]
        elif read.progress[index]:
            rank, incarnation, _, _ = numbers[-1]
            progress = newest_progress(rank, incarnation, pb.Record.FromString(read.progress[index]).progress)
        runs.append(
            ArrivedRun(job_id, each.record.offset, numbers, first_row, samples[first_row:row], progress, events)
        )
        first, first_row = index + 1, row
    return runs


def _ends_run(kept: Sequence[_Kept], read: _Read, index: int) -> bool:
    message, following = kept[index].message, kept[index + 1].message
    return (
        read.job_ids[index + 1] != read.job_ids[index]
        or bool(read.progress[index])
        or (message is not None and (message.rank < 0 or bool(message.events) or bool(message.progress)))
        or (following is not None and bool(following.events))
    )
