"""A batch of records at once: what thousands of ranks send becomes arrays, and what is odd is looked at one by one.

Whatever is not plain goes through :func:`~services.telemetry.adapters.record_decoder.decode_record`, whose word counts:
both ways give the same of the same bytes, the plain one a dozen times as fast.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from services.common.kafka import ConsumedRecord, RejectedRecordError, Rejection
from services.common.raw_fields import raw_message_class
from services.telemetry.adapters.block_builder import BlockBuilder
from services.telemetry.adapters.record_decoder import (
    check_envelope,
    decode_record,
    event_from_proto,
    newest_progress,
)
from services.telemetry.domain.observed import ArrivedEvent, ArrivedProgress, ArrivedSample
from services.telemetry.domain.sample_block import SampleBlock, SampleRow
from services.telemetry.domain.validate import (
    MAX_INCARNATION,
    MAX_RANK,
    MAX_SAMPLES,
    HostileRecordError,
    check_progress,
)

_MAX_TEXTS = 100_000
# The contract's record, of which samples, progress and events stay closed.
_RawRecord = raw_message_class(pb.DESCRIPTOR, "Record", {"Record": ["samples", "progress", "events"]})
_record_fields = attrgetter(
    "job_id", "rank", "incarnation", "sequence", "num_dropped", "node", "device", "samples", "progress", "events"
)


class ArrivedRecord(NamedTuple):
    """One record that can be believed.

    Attributes:
        job_id: The job.
        rank: Of which rank; -1 for a launcher.
        incarnation: Of which process.
        sequence: Its number.
        num_dropped: Samples that the process has dropped so far.
        first_row: Row of its first sample in the batch's block.
        samples: Its samples.
        progress: The newest progress, if it has any.
        events: Process events.
    """

    job_id: str
    rank: int
    incarnation: int
    sequence: int
    num_dropped: int
    offset: int
    first_row: int
    samples: Sequence[ArrivedSample]
    progress: ArrivedProgress | None
    events: Sequence[ArrivedEvent]


class ArrivedBatch(NamedTuple):
    """What became of a batch: its records in order, their samples as arrays, and what is poison."""

    records: list[ArrivedRecord]
    block: SampleBlock
    rejections: list[Rejection]


class _Opened(NamedTuple):
    """A record with its samples open; ``checked`` if nothing in it needs to be looked at again."""

    record: ConsumedRecord
    fields: tuple[Any, ...]
    checked: bool


class RecordBatchDecoder:
    """Decodes batches; remembers names and positions that it has checked."""

    def __init__(self) -> None:
        self._job_keys: dict[str, bytes] = {}
        self._texts: set[str] = {""}

    def decode(self, records: Sequence[ConsumedRecord]) -> ArrivedBatch:
        """The records that can be believed, and the others with the reason why not."""
        rejections: list[Rejection] = []
        opened = self._open(records, rejections)
        block, believed = self._block_of(opened)
        if not believed.all():
            opened = self._second_look(opened, believed.tolist(), rejections)
            block, _ = self._block_of(opened)
        return ArrivedBatch(self._arrived(opened, block), block, rejections)

    def _open(self, records: Sequence[ConsumedRecord], rejections: list[Rejection]) -> list[_Opened]:
        opened = []
        for record in records:
            try:
                opened.append(self._open_plain(record) or self._open_slowly(record))
            except RejectedRecordError as error:
                rejections.append(Rejection(record=record, error=error.error, reason=error.reason))
        return opened

    def _open_plain(self, record: ConsumedRecord) -> _Opened | None:
        """None for a record that is not plain, or none at all."""
        value = check_envelope(record)
        try:
            fields = _record_fields(_RawRecord.FromString(value))
        except DecodeError:
            return None
        job_id, rank, incarnation, _, _, node, device, samples, progress, events = fields
        if (
            record.key != self._job_keys.get(job_id, b"")
            or not 0 <= rank <= MAX_RANK
            or not 0 <= incarnation <= MAX_INCARNATION
            or node not in self._texts
            or device not in self._texts
            or events
            or len(samples) + len(progress) > MAX_SAMPLES
        ):
            return None
        if progress:
            fields = (*fields[:8], _checked_progress(progress), ())
        return _Opened(record, fields, checked=False)

    def _open_slowly(self, record: ConsumedRecord) -> _Opened:
        """Raises RejectedRecordError for what cannot be believed."""
        message = decode_record(record)
        if len(self._texts) + len(self._job_keys) >= _MAX_TEXTS:
            self._texts, self._job_keys = {""}, {}
        self._texts.update((message.node, message.device))
        self._job_keys[message.job_id] = message.job_id.encode()
        progress, events = list(message.progress), list(message.events)
        # Written anew without what nobody here knows, it is as plain as can be.
        message.DiscardUnknownFields()
        fields = _record_fields(_RawRecord.FromString(message.SerializeToString()))
        return _Opened(record, (*fields[:8], progress, events), checked=True)

    def _second_look(
        self, opened: Sequence[_Opened], believed: Sequence[bool], rejections: list[Rejection]
    ) -> list[_Opened]:
        """Records with a row that looked odd are decoded one by one, the others stay as they are."""
        kept, row = [], 0
        for each in opened:
            num_samples = len(each.fields[7])
            plain = all(believed[row : row + num_samples])
            row += num_samples
            if plain or each.checked:
                kept.append(each)
                continue
            try:
                kept.append(self._open_slowly(each.record))
            except RejectedRecordError as error:
                rejections.append(Rejection(record=each.record, error=error.error, reason=error.reason))
        return kept

    def _block_of(self, opened: Sequence[_Opened]) -> tuple[SampleBlock, Any]:
        builder = BlockBuilder()
        for record, fields, _ in opened:
            samples = fields[7]
            if samples:
                head, place = (fields[1], fields[2], record.offset), (fields[5], fields[6])
                builder.add(list(samples), head=head, place=place)
        return builder.build()

    @staticmethod
    def _arrived(opened: Sequence[_Opened], block: SampleBlock) -> list[ArrivedRecord]:
        samples = [
            ArrivedSample._make(values)
            for values in zip(
                block.ranks.tolist(),
                block.incarnations.tolist(),
                block.nodes,
                block.devices,
                block.epochs.tolist(),
                block.iterations.tolist(),
                block.numbers[:, 1].tolist(),
                block.offsets.tolist(),
                [SampleRow(block, row) for row in range(len(block))],
                strict=True,
            )
        ]
        arrived, row = [], 0
        for record, fields, _ in opened:
            job_id, rank, incarnation, sequence, num_dropped, _, _, raw_samples, progress, events = fields
            stop = row + len(raw_samples)
            arrived.append(
                ArrivedRecord(
                    job_id,
                    rank,
                    incarnation,
                    sequence,
                    num_dropped,
                    record.offset,
                    row,
                    samples[row:stop],
                    newest_progress(rank, incarnation, progress),
                    [event_from_proto(event) for event in events] if events else (),
                )
            )
            row = stop
        return arrived


def _checked_progress(raws: Sequence[bytes]) -> list[pb.Progress]:
    """Raises RejectedRecordError for what cannot be believed."""
    try:
        found = [pb.Progress.FromString(raw) for raw in raws]
        for progress in found:
            check_progress(progress)
    except DecodeError as error:
        raise RejectedRecordError("malformed", f"progress that is none: {error}") from None
    except HostileRecordError as error:
        raise RejectedRecordError(error.word, str(error)) from None
    return found
