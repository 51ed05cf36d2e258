"""From what piled up to the bytes of batches: pure, used by the background thread only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from evenkeel.contracts.columns import (
    HAS_CPU,
    HAS_DEVICE,
    HAS_FLOPS,
    HAS_INPUT,
    HAS_LOSS,
    HAS_NORM,
    HAS_QUEUED,
    HAS_USAGE,
    ITERATION,
    PRESENT,
    READING,
)
from evenkeel.layouts.ranks.traffic import stamped_indices
from evenkeel.telemetry.v2 import batch_pb2, process_pb2
from evenkeel.trainer_sdk.emit.left_value import number
from evenkeel.trainer_sdk.emit.measured import NOWHERE, Measured, Place, Stamps
from evenkeel.trainer_sdk.emit.readings import Reading

_FLAG_OF = {
    "loss": HAS_LOSS,
    "gradient_norm": HAS_NORM,
    "input_seconds": HAS_INPUT,
    "cpu_seconds": HAS_CPU,
    "queued_seconds": HAS_QUEUED,
    "device_seconds": HAS_DEVICE,
    "process_cpu_seconds": HAS_USAGE,
}
_LARGEST_UINT32 = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A process of a job: which rank's (-1 for a launcher's), the how manieth of it, and where it runs."""

    job_id: str
    rank: int
    incarnation: int = 0
    node: str = ""
    device: str = ""


class BatchBuilder:
    """Numbers batches, so that a reader sees in the gaps what was dropped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sequence = 0

    def build(
        self,
        *,
        measured: Sequence[Measured] = (),
        events: Iterable[process_pb2.ProcessEvent] = (),
        progress: process_pb2.Progress | None = None,
        readings: Sequence[Reading] = (),
        num_dropped: int = 0,
    ) -> list[batch_pb2.Batch]:
        """The next batches: one for each place that iterations ran at one after the other, and at least one."""
        of_places = [(place, list(group)) for place, group in groupby(measured, key=lambda each: each.place)]
        batches = [self._batch(place, group, num_dropped) for place, group in of_places or [(NOWHERE, [])]]
        first = batches[0]
        for event in events:
            first.events.add().CopyFrom(event)
            self._say_where(first.events[-1])
        if progress is not None:
            first.progress.add().CopyFrom(progress)
        for column in READING:
            getattr(first, column.name).extend(getattr(each, column.name) for each in readings)
        first.num_events[0], first.num_progress[0] = len(first.events), len(first.progress)
        first.num_readings[0] = len(readings)
        return batches

    def _batch(self, place: Place, measured: Sequence[Measured], num_dropped: int) -> batch_pb2.Batch:
        source = self._source
        batch = batch_pb2.Batch(
            job_id=[source.job_id],
            node=[source.node],
            device=[source.device],
            rank=[source.rank],
            incarnation=[source.incarnation],
            epoch=[place.epoch],
            replica=[place.replica],
            stage=[place.stage],
            shard=[place.shard],
            sequence=[self._sequence],
            num_dropped=[num_dropped],
            forward_flops_per_token=[place.forward_flops_per_token or 0.0],
            forward_flops_per_squared_length=[place.forward_flops_per_squared_length],
            backward_multiple=[place.backward_multiple],
            num_iterations=[len(measured)],
            num_readings=[0],
            num_progress=[0],
            num_events=[0],
        )
        self._sequence += 1
        for each in measured:
            _add(batch, each)
        return batch

    def _say_where(self, event: process_pb2.ProcessEvent) -> None:
        """A rank's own events carry its place; a launcher knows the node of its ranks, not their devices."""
        if event.rank == self._source.rank:
            event.node = event.node or self._source.node
            event.device = event.device or self._source.device
        elif self._source.rank < 0:
            event.node = event.node or self._source.node


def _add(batch: batch_pb2.Batch, measured: Measured) -> None:
    values: dict[str, Any] = {
        "loss": number(measured.loss, "loss"),
        "gradient_norm": number(measured.gradient_norm, "gradient_norm"),
        "num_listed": len(measured.listed),
        "num_operations": 0,
        "num_channels": len(measured.channels),
    }
    flags = PRESENT
    if measured.place.forward_flops_per_token is not None:
        flags |= HAS_FLOPS
    for column in ITERATION:
        name = column.name
        if name == "flags":
            continue
        value = values[name] if name in values else getattr(measured, name)
        if name in _FLAG_OF and value is not None:
            flags |= _FLAG_OF[name]
        getattr(batch, name).append(0 if value is None else value)
    batch.flags.append(flags)
    for listed in measured.listed:
        batch.listed_index.append(listed.index)
        batch.listed_tokens.append(listed.tokens)
        batch.listed_squares.append(listed.squares)
        batch.listed_kept.append(listed.kept)
    for channel in measured.channels:
        _add_channel(batch, channel, measured.began_seconds)


def _add_channel(batch: batch_pb2.Batch, channel: Stamps, began_seconds: float) -> None:
    kind, party, num_members, entered, took, num_bytes = channel
    chosen = stamped_indices(len(entered))
    batch.channel_kind.append(batch_pb2.ChannelKind.ValueType(kind))
    batch.channel_party.append(party)
    batch.channel_num_members.append(num_members)
    batch.channel_num_operations.append(len(entered))
    batch.channel_bytes.append(sum(num_bytes))
    batch.channel_wait_microseconds.append(_microseconds(sum(took)))
    batch.channel_num_stamped.append(len(chosen))
    needs_clock = kind != batch_pb2.CHANNEL_KIND_COLLECTIVE
    for k in chosen:
        batch.stamp_entered_microseconds.append(_microseconds(entered[k] - began_seconds) if needs_clock else 0)
        batch.stamp_took_microseconds.append(_microseconds(took[k]) if took else 0)
        batch.stamp_bytes.append(num_bytes[k] if took else 0)


def _microseconds(seconds: float) -> int:
    return min(max(round(seconds * 1e6), 0), _LARGEST_UINT32)
