"""A batch of records at once: what thousands of ranks send becomes arrays, and what is odd is looked at one by one.

Whatever is not plain goes through :func:`~services.telemetry.adapters.record_decoder.decode_record`, whose word counts,
and is written anew as plainly as can be: both ways give the same of the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import attrgetter, eq
from typing import NamedTuple

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from services.common.kafka import ConsumedRecord, RejectedRecordError, Rejection
from services.telemetry.adapters.block_builder import BlockBuilder, SampleSources
from services.telemetry.adapters.known_names import KnownNames
from services.telemetry.adapters.progress_reader import ProgressReader
from services.telemetry.adapters.record_decoder import (
    are_our_envelopes,
    check_envelope,
    decode_record,
    event_from_proto,
    newest_progress,
)
from services.telemetry.adapters.wire_cursor import Wire
from services.telemetry.domain.observed import ArrivedEvent, ArrivedProgress
from services.telemetry.domain.sample_block import Bools, SampleBlock
from services.telemetry.domain.validate import MAX_INCARNATION, MAX_RANK, MAX_SAMPLES

_NUMBER = {field.name: field.number for field in pb.Record.DESCRIPTOR.fields}
_key_of, _offset_of, _value_of = attrgetter("key"), attrgetter("offset"), attrgetter("value")


class ArrivedRun(NamedTuple):
    """Consecutive records of one job; one that has events has a run alone.

    Attributes:
        job_id: The job.
        newest_offset: Offset of the last record.
        numbers: Rank, incarnation, record number and samples dropped so far of each record.
        told: Rank, incarnation, number of samples and newest progress of each record.
        first_row: Row of the first sample in the batch's block.
        stop_row: Behind the row of the last one.
        events: Events of the only record.
    """

    job_id: str
    newest_offset: int
    numbers: list[tuple[int, int, int, int]]
    told: list[tuple[int, int, int, ArrivedProgress | None]]
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
        values: The plain bytes of each.
        messages: The message of each that had to be decoded, by its place.
    """

    records: list[ConsumedRecord] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    messages: dict[int, pb.Record] = field(default_factory=dict)

    def add(self, record: ConsumedRecord, value: bytes, message: pb.Record | None = None) -> None:
        """One more."""
        if message is not None:
            self.messages[len(self.records)] = message
        self.records.append(record)
        self.values.append(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What was read across records: one item a record, but for the block.

    Attributes:
        job_ids: The job.
        ranks: Rank.
        incarnations: Which process of the rank.
        sequences: Number of the record.
        dropped: Samples dropped so far.
        num_samples: How many of the block's rows are its samples.
        progress: Its newest progress.
        block: All samples.
        believed: False where a closer look is needed.
    """

    job_ids: list[str]
    ranks: list[int]
    incarnations: list[int]
    sequences: list[int]
    dropped: list[int]
    num_samples: list[int]
    progress: list[ArrivedProgress | None]
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
        wire, size = Wire(kept.values), len(kept.values)
        cursor = wire.cursor()
        jobs = wire.cut(*cursor.texts(_NUMBER["job_id"]))
        ranks, incarnations = cursor.int32s(_NUMBER["rank"]), cursor.int32s(_NUMBER["incarnation"])
        sequences, dropped = cursor.int64s(_NUMBER["sequence"]), cursor.int64s(_NUMBER["num_dropped"])
        place_begins = cursor.at
        for name in ("node", "device"):
            cursor.texts(_NUMBER[name])
        places = wire.cut(place_begins, cursor.at)
        owners, begins, ends = cursor.items(_NUMBER["samples"], most=MAX_SAMPLES)
        reports = cursor.items(_NUMBER["progress"], most=MAX_SAMPLES)
        cursor.end()
        num_samples = np.bincount(owners, minlength=size)
        believed = cursor.plain & (ranks <= MAX_RANK) & (incarnations <= MAX_INCARNATION)
        believed &= num_samples + np.bincount(reports[0], minlength=size) <= MAX_SAMPLES
        believed &= np.fromiter(map(eq, jobs, map(_key_of, kept.records)), dtype=np.bool_, count=size)
        job_ids = self._known.job_ids(jobs)
        if "" in job_ids:
            believed &= np.array(job_ids, dtype=np.bool_)
        node_of, device_of, odd = self._known.places(places)
        believed[odd] = False
        offsets = np.fromiter(map(_offset_of, kept.records), dtype=np.int64, count=size)
        sources = SampleSources(
            begins=begins,
            ends=ends,
            ranks=ranks[owners],
            incarnations=incarnations[owners],
            offsets=offsets[owners],
            node_of=node_of[owners],
            device_of=device_of[owners],
            names=self._known.names,
        )
        block, credible = BlockBuilder(wire).build(sources)
        believed[owners[~credible]] = False
        return _Read(
            job_ids=job_ids,
            ranks=ranks.tolist(),
            incarnations=incarnations.tolist(),
            sequences=sequences.tolist(),
            dropped=dropped.tolist(),
            num_samples=num_samples.tolist(),
            progress=self._progress.newest(wire, *reports, ranks, incarnations, believed),
            block=block,
            believed=believed,
        )


def _opened(records: Sequence[ConsumedRecord], rejections: list[Rejection]) -> _Kept:
    """The records whose envelopes pass; ``rejections`` gets the others."""
    if records and are_our_envelopes(records):
        return _Kept(list(records), [*map(_value_of, records)])
    kept = _Kept()
    for record in records:
        try:
            kept.add(record, check_envelope(record))
        except RejectedRecordError as error:
            rejections.append(Rejection(record=record, error=error.error, reason=error.reason))
    return kept


def _second_look(kept: _Kept, read: _Read, rejections: list[Rejection]) -> _Kept:
    """What is odd is decoded one by one, and made plain or, added to the rejections, refused."""
    still = _Kept()
    for place, (record, value, plain) in enumerate(zip(kept.records, kept.values, read.believed.tolist(), strict=True)):
        message = kept.messages.get(place)
        if plain:
            still.add(record, value, message)
            continue
        try:
            if message is not None:
                raise RejectedRecordError("unreadable", "a record that says so much that it cannot be taken in")
            message = decode_record(record)
            still.add(record, _plain_bytes(message), message)
        except RejectedRecordError as error:
            rejections.append(Rejection(record=record, error=error.error, reason=error.reason))
    return still


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
    size, job_ids = len(kept.records), read.job_ids
    if not size:
        return []
    for place, message in kept.messages.items():
        read.ranks[place] = message.rank
        read.progress[place] = newest_progress(message.rank, message.incarnation, message.progress)
    borders = {0, size}
    borders.update(place + step for place, each in kept.messages.items() if each.events for step in (0, 1))
    if job_ids.count(job_ids[0]) < size:
        borders.update(place for place, (one, other) in enumerate(pairwise(job_ids), 1) if one != other)
    rows = list(accumulate(read.num_samples, initial=0))
    return [_run(kept, read, first, stop, rows) for first, stop in pairwise(sorted(borders))]


def _run(kept: _Kept, read: _Read, first: int, stop: int, rows: Sequence[int]) -> ArrivedRun:
    records = slice(first, stop)
    ranks, incarnations = read.ranks[records], read.incarnations[records]
    message = kept.messages.get(first)
    return ArrivedRun(
        job_id=read.job_ids[first],
        newest_offset=kept.records[stop - 1].offset,
        numbers=list(zip(ranks, incarnations, read.sequences[records], read.dropped[records], strict=True)),
        told=list(zip(ranks, incarnations, read.num_samples[records], read.progress[records], strict=True)),
        first_row=rows[first],
        stop_row=rows[stop],
        events=[] if message is None else [event_from_proto(event) for event in message.events],
    )
