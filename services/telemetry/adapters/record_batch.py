"""A batch of records at once: what thousands of ranks send becomes arrays, and what is odd is looked at one by one.

Whatever is not plain goes through :func:`~services.telemetry.adapters.record_decoder.decode_record`, whose word counts,
and is written anew as plainly as can be: both ways give the same of the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from services.common.kafka import ConsumedRecord, RejectedRecordError, Rejection
from services.telemetry.adapters.block_builder import BlockBuilder, SampleSources
from services.telemetry.adapters.progress_reader import ProgressReader
from services.telemetry.adapters.record_decoder import (
    check_envelope,
    decode_record,
    event_from_proto,
    newest_progress,
)
from services.telemetry.adapters.wire_cursor import Wire
from services.telemetry.domain.observed import ArrivedEvent, ArrivedProgress
from services.telemetry.domain.sample_block import Bools, Names, SampleBlock
from services.telemetry.domain.validate import (
    MAX_INCARNATION,
    MAX_RANK,
    MAX_SAMPLES,
    HostileRecordError,
    check_record,
)

_MAX_NAMES = 100_000
_NUMBER = {field.name: field.number for field in pb.Record.DESCRIPTOR.fields}


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
        progress: Its newest progress.
        block: All samples.
        believed: False where a closer look is needed.
    """

    job_ids: list[str]
    numbers: list[tuple[int, int, int, int]]
    num_samples: list[int]
    progress: list[ArrivedProgress | None]
    block: SampleBlock
    believed: Bools


class RecordBatchDecoder:
    """Decodes batches; remembers the names that it has checked."""

    def __init__(self) -> None:
        self._progress = ProgressReader()
        self._forget_names()

    def _forget_names(self) -> None:
        self._job_ids: dict[bytes, str] = {}
        # Blocks share the names, which are only ever added to.
        self._names = Names([""])
        self._name_numbers = {"": 0}
        self._places: dict[bytes, tuple[int, int]] = {b"": (0, 0)}

    def decode(self, records: Sequence[ConsumedRecord]) -> ArrivedBatch:
        """The records that can be believed, and the others with the reason why not."""
        rejections: list[Rejection] = []
        kept: list[_Kept] = []
        for record in records:
            try:
                kept.append(_Kept(record, check_envelope(record)))
            except RejectedRecordError as error:
                rejections.append(Rejection(record=record, error=error.error, reason=error.reason))
        if len(self._places) + len(self._job_ids) >= _MAX_NAMES:
            self._forget_names()
        read = self._read(kept)
        while not read.believed.all():
            kept = self._second_look(kept, read, rejections)
            read = self._read(kept)
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
        reports = cursor.items(_NUMBER["progress"], most=MAX_SAMPLES)
        cursor.end()
        num_samples = np.bincount(owners, minlength=len(kept))
        believed = cursor.plain & (ranks <= MAX_RANK) & (incarnations <= MAX_INCARNATION)
        believed &= num_samples + np.bincount(reports[0], minlength=len(kept)) <= MAX_SAMPLES
        job_ids, places = [], []
        for row, (each, begin, end, place_begin, place_end) in enumerate(
            zip(kept, job_begins.tolist(), job_ends.tolist(), place_begins.tolist(), place_ends.tolist(), strict=True)
        ):
            job, where = buffer[begin:end], buffer[place_begin:place_end]
            job_id, place = self._job_ids.get(job), self._places.get(where)
            if job_id is None or place is None:
                job_id, place = self._learned(job, where)
            if each.record.key != job or not job_id:
                believed[row] = False
            job_ids.append(job_id)
            places.append(place)
        node_of, device_of = np.array(places, dtype=np.int64).reshape(-1, 2).T
        offsets = np.fromiter((each.record.offset for each in kept), dtype=np.int64, count=len(kept))
        sources = SampleSources(
            begins=begins,
            ends=ends,
            ranks=ranks[owners],
            incarnations=incarnations[owners],
            offsets=offsets[owners],
            node_of=node_of[owners],
            device_of=device_of[owners],
            names=self._names,
        )
        block, credible = BlockBuilder(wire).build(sources)
        believed[owners[~credible]] = False
        return _Read(
            job_ids=job_ids,
            numbers=list(zip(ranks.tolist(), incarnations.tolist(), sequences.tolist(), dropped.tolist(), strict=True)),
            num_samples=num_samples.tolist(),
            progress=self._progress.newest(wire, *reports, ranks, incarnations, believed),
            block=block,
            believed=believed,
        )

    def _second_look(self, kept: Sequence[_Kept], read: _Read, rejections: list[Rejection]) -> list[_Kept]:
        """What is odd is decoded one by one, and made plain or, added to the rejections, refused."""
        still = []
        for each, plain in zip(kept, read.believed.tolist(), strict=True):
            if plain:
                still.append(each)
                continue
            try:
                if each.message is not None:
                    raise RejectedRecordError("unreadable", "a record that says so much that it cannot be taken in")
                still.append(_made_plain(each.record))
            except RejectedRecordError as error:
                rejections.append(Rejection(record=each.record, error=error.error, reason=error.reason))
        return still

    def _learned(self, job: bytes, where: bytes) -> tuple[str, tuple[int, int]]:
        """A job and a place that are new: known from now on, or the job without a name if they cannot be meant."""
        try:
            named = pb.Record.FromString(where)
            named.job_id = job.decode()
            check_record(named, key=job)
        except (DecodeError, UnicodeDecodeError, HostileRecordError):
            return "", (0, 0)
        self._job_ids[job] = named.job_id
        place = self._places[where] = self._number_of(named.node), self._number_of(named.device)
        return named.job_id, place

    def _number_of(self, name: str) -> int:
        number = self._name_numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number


def _made_plain(record: ConsumedRecord) -> _Kept:
    """Raises RejectedRecordError for what cannot be believed."""
    message = decode_record(record)
    plain = pb.Record()
    plain.CopyFrom(message)
    plain.DiscardUnknownFields()
    del plain.events[:], plain.progress[:]
    plain.rank = max(plain.rank, 0)  # a launcher has no samples
    return _Kept(record, plain.SerializeToString(), message)


def _runs(kept: Sequence[_Kept], read: _Read) -> list[ArrivedRun]:
    rows = list(accumulate(read.num_samples, initial=0))
    ends = [index for index in range(1, len(kept)) if _ends_run(kept, read, index)]
    return [_run(kept, read, first, stop, rows) for first, stop in pairwise([0, *ends, len(kept)]) if stop > first]


def _ends_run(kept: Sequence[_Kept], read: _Read, index: int) -> bool:
    """Whether a run ends before this record."""
    if read.job_ids[index] != read.job_ids[index - 1]:
        return True
    return _has_events(kept[index].message) or _has_events(kept[index - 1].message)


def _has_events(message: pb.Record | None) -> bool:
    return message is not None and bool(message.events)


def _run(kept: Sequence[_Kept], read: _Read, first: int, stop: int, rows: Sequence[int]) -> ArrivedRun:
    numbers, progress = read.numbers[first:stop], read.progress[first:stop]
    events: list[ArrivedEvent] = []
    for place, each in enumerate(kept[first:stop]):
        message = each.message
        if message is not None:
            numbers[place] = (message.rank, *numbers[place][1:])
            progress[place] = newest_progress(message.rank, message.incarnation, message.progress)
            events.extend(event_from_proto(event) for event in message.events)
    return ArrivedRun(
        job_id=read.job_ids[first],
        newest_offset=kept[stop - 1].record.offset,
        numbers=numbers,
        told=[
            (rank, incarnation, num_samples, newest)
            for (rank, incarnation, _, _), num_samples, newest in zip(
                numbers, read.num_samples[first:stop], progress, strict=True
            )
        ],
        first_row=rows[first],
        stop_row=rows[stop],
        events=events,
    )
