"""A batch of records at once: what thousands of ranks send becomes arrays, and what is odd is looked at one by one.

Whatever is not plain goes through :func:`~evenkeel.services.telemetry.adapters.record_decoder.decode_record`, whose
word counts, and is written anew as plainly as can be: both ways give the same of the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from evenkeel.contracts.topics import RECORDS
from evenkeel.numeric.arrays import Bools, Ints
from evenkeel.services.common.kafka import ConsumedRecord, FetchedRecords, Partition, RejectedRecordError, Rejection
from evenkeel.services.common.kafka.fetched_records import KEY, OFFSET, VALUE
from evenkeel.services.telemetry.adapters.block_builder import SampleSources, build_block
from evenkeel.services.telemetry.adapters.byte_table import same_strings
from evenkeel.services.telemetry.adapters.envelopes import are_our_envelopes
from evenkeel.services.telemetry.adapters.known_names import KnownNames
from evenkeel.services.telemetry.adapters.progress_reader import ProgressReader
from evenkeel.services.telemetry.adapters.record_decoder import (
    check_envelope,
    decode_record,
    event_from_proto,
    newest_progress,
)
from evenkeel.services.telemetry.adapters.record_scan import scan_records
from evenkeel.services.telemetry.domain.observed import ArrivedEvent, ArrivedProgress
from evenkeel.services.telemetry.domain.sample_block import SampleBlock
from evenkeel.services.telemetry.domain.validate import MAX_COUNT, MAX_INCARNATION, MAX_RANK, MAX_SAMPLES
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_HIGHEST = np.array([MAX_RANK, MAX_INCARNATION, MAX_COUNT, MAX_COUNT])
_NOWHERE = Partition(RECORDS.name, -1)


class ArrivedRun(NamedTuple):
    """Consecutive records of one job; one that has events has a run alone.

    Attributes:
        job_id: The job.
        first_offset: Offset of the first record.
        newest_offset: Offset of the last one.
        numbers: One row a record: rank, incarnation, record number and samples dropped so far.
        num_samples: Samples of each record.
        progress: Newest progress of the records that have any, with the record's row, ascending.
        first_row: Row of the first sample in the batch's block.
        stop_row: Behind the row of the last one.
        events: Events of the only record.
    """

    job_id: str
    first_offset: int
    newest_offset: int
    numbers: Ints
    num_samples: Ints
    progress: list[tuple[int, ArrivedProgress]]
    first_row: int
    stop_row: int
    events: list[ArrivedEvent]


class ArrivedBatch(NamedTuple):
    """What became of a batch: its records in order, their samples as arrays, and what is poison."""

    runs: list[ArrivedRun]
    block: SampleBlock
    rejections: list[Rejection]


@dataclass(slots=True)
class _Kept:
    """The records that are not refused so far.

    Attributes:
        records: As they came.
        buffer: Where the plain bytes of each are.
        begins: First byte of each.
        ends: Behind its last byte.
        messages: The message of each that had to be decoded, by its place.
    """

    records: FetchedRecords
    buffer: bytes
    begins: Ints
    ends: Ints
    messages: dict[int, pb.Record] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What was read across records: one item a record, but for the block.

    Attributes:
        job_ids: Each job once; empty where nobody can have meant it.
        job_of: Which of them.
        numbers: Rank, incarnation, record number, samples dropped so far.
        num_samples: How many samples.
        progress: Newest progress of those that have any, by row.
        block: The samples.
        believed: False where a closer look is needed.
    """

    job_ids: list[str]
    job_of: Ints
    numbers: Ints
    num_samples: Ints
    progress: dict[int, ArrivedProgress]
    block: SampleBlock
    believed: Bools


class RecordBatchDecoder:
    """Decodes batches; remembers the names that it has checked."""

    def __init__(self) -> None:
        self._progress = ProgressReader()
        self._known = KnownNames()

    def decode(self, records: Sequence[ConsumedRecord]) -> ArrivedBatch:
        """The records that can be believed, and the others with the reason why not."""
        rejections: list[Rejection] = []
        kept = _opened(records, rejections)
        self._known.make_room()
        read = self._read(kept)
        while not read.believed.all():
            kept = _second_look(kept, read, rejections)
            read = self._read(kept)
        return ArrivedBatch(_runs(kept, read), read.block, rejections)

    def _read(self, kept: _Kept) -> _Read:
        wire = np.frombuffer(kept.buffer, dtype=np.uint8)
        found = scan_records(wire, kept.begins, kept.ends)
        numbers, names = found.heads[:, 0:4], found.heads[:, 4:8]
        num_samples, num_reports = found.heads[:, 8], found.heads[:, 9]
        keys = kept.records.places[:, KEY : KEY + 2]
        believed = found.plain & (numbers <= _HIGHEST).all(axis=1) & (num_samples + num_reports <= MAX_SAMPLES)
        believed &= same_strings(wire, names[:, 0:2], kept.records.wire, keys)
        job_ids, job_of = self._known.job_ids(wire, names[:, 0], names[:, 1])
        if "" in job_ids:
            believed &= np.array(job_ids, dtype=np.bool_)[job_of]
        node_of, device_of, odd = self._known.places(wire, names[:, 2], names[:, 3])
        believed[odd] = False
        owners = found.samples[:, 0]
        sources = SampleSources(
            begins=found.samples[:, 1],
            ends=found.samples[:, 2],
            ranks=numbers[owners, 0],
            incarnations=numbers[owners, 1],
            offsets=kept.records.places[owners, OFFSET],
            node_of=node_of[owners],
            device_of=device_of[owners],
            names=self._known.names,
        )
        block, credible = build_block(kept.buffer, sources)
        believed[owners[~credible]] = False
        return _Read(
            job_ids=job_ids,
            job_of=job_of,
            numbers=numbers,
            num_samples=num_samples,
            progress=self._progress.newest(wire, kept.buffer, found.reports, numbers, believed),
            block=block,
            believed=believed,
        )


def _opened(records: Sequence[ConsumedRecord], rejections: list[Rejection]) -> _Kept:
    """The records whose envelopes pass; ``rejections`` gets the others."""
    if not isinstance(records, FetchedRecords):
        records = FetchedRecords.of(records[0].partition if records else _NOWHERE, records)
    passed = are_our_envelopes(records)
    if not passed.all():
        for row in np.flatnonzero(~passed).tolist():
            try:
                check_envelope(records[row])
                passed[row] = True
            except RejectedRecordError as error:
                rejections.append(Rejection(record=records[row], error=error.error, reason=error.reason))
        records = FetchedRecords(records.partition, records.buffer, records.places[passed])
    return _Kept(records, records.buffer, records.places[:, VALUE], records.places[:, VALUE + 1])


def _second_look(kept: _Kept, read: _Read, rejections: list[Rejection]) -> _Kept:
    """What is odd is decoded one by one, and made plain or, added to the rejections, refused."""
    stays, first, size = read.believed.copy(), int(kept.begins.min()), int(kept.ends.max())
    parts, begins, ends, size = [kept.buffer[first:size]], kept.begins - first, kept.ends - first, size - first
    messages = dict(kept.messages)
    for row in np.flatnonzero(~read.believed).tolist():
        record = kept.records[row]
        try:
            if row in messages:
                raise RejectedRecordError("unreadable", "a record that says so much that it cannot be taken in")
            messages[row] = message = decode_record(record)
        except RejectedRecordError as error:
            rejections.append(Rejection(record=record, error=error.error, reason=error.reason))
            continue
        raw = _plain_bytes(message)
        parts.append(raw)
        begins[row], ends[row], stays[row] = size, size + len(raw), True
        size += len(raw)
    records = FetchedRecords(kept.records.partition, kept.records.buffer, kept.records.places[stays])
    places = np.cumsum(stays) - 1
    moved = {int(places[row]): message for row, message in messages.items() if stays[row]}
    return _Kept(records, b"".join(parts), begins[stays], ends[stays], moved)


def _plain_bytes(message: pb.Record) -> bytes:
    """Its samples and who sent them, as plainly as can be."""
    plain = pb.Record()
    plain.CopyFrom(message)
    plain.DiscardUnknownFields()
    del plain.events[:], plain.progress[:]
    plain.rank = max(plain.rank, 0)  # a launcher has no samples
    raw: bytes = plain.SerializeToString()
    return raw


def _runs(kept: _Kept, read: _Read) -> list[ArrivedRun]:
    size = len(kept.records)
    if not size:
        return []
    for row, message in kept.messages.items():
        read.numbers[row, 0] = message.rank
        progress = newest_progress(message.rank, message.incarnation, message.progress)
        if progress is not None:
            read.progress[row] = progress
    borders = {0, size, *(np.flatnonzero(np.diff(read.job_of)) + 1).tolist()}
    borders.update(row + step for row, each in kept.messages.items() if each.events for step in (0, 1))
    rows = [0, *np.cumsum(read.num_samples).tolist()]
    told = sorted(read.progress.items())
    return [_run(kept, read, first, stop, rows, told) for first, stop in pairwise(sorted(borders))]


def _run(
    kept: _Kept,
    read: _Read,
    first: int,
    stop: int,
    rows: Sequence[int],
    told: Sequence[tuple[int, ArrivedProgress]],
) -> ArrivedRun:
    message = kept.messages.get(first)
    return ArrivedRun(
        job_id=read.job_ids[read.job_of[first]],
        first_offset=int(kept.records.places[first, OFFSET]),
        newest_offset=int(kept.records.places[stop - 1, OFFSET]),
        numbers=read.numbers[first:stop],
        num_samples=read.num_samples[first:stop],
        progress=[(row - first, each) for row, each in told if first <= row < stop],
        first_row=rows[first],
        stop_row=rows[stop],
        events=[] if message is None else [event_from_proto(event) for event in message.events],
    )
