"""From what piled up to one ``Record``: pure, used by the background thread only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenkeel.layouts.traffic import stamped_indices
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.trainer_sdk.emit.left_value import number
from evenkeel.trainer_sdk.emit.measured import NOWHERE, Listed, Measured, Stamps


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The process that emits: job, rank (-1 for a launcher), incarnation, and where it runs."""

    job_id: str
    rank: int
    incarnation: int = 0
    node: str = ""
    device: str = ""


class RecordBuilder:
    """Numbers records, so that a reader sees in the gaps what was dropped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sequence = 0

    def build(
        self,
        *,
        measured: Iterable[Measured] = (),
        events: Iterable[pb.ProcessEvent] = (),
        progress: pb.Progress | None = None,
        num_dropped: int = 0,
    ) -> pb.Record:
        """The next record."""
        events = list(events)
        for event in events:
            self._say_where(event)
        record = pb.Record(
            job_id=self._source.job_id,
            rank=self._source.rank,
            incarnation=self._source.incarnation,
            sequence=self._sequence,
            num_dropped=num_dropped,
            node=self._source.node,
            device=self._source.device,
            samples=map(_sample, measured),
            events=events,
            progress=[] if progress is None else [progress],
        )
        self._sequence += 1
        return record

    def _say_where(self, event: pb.ProcessEvent) -> None:
        """A rank's own events carry its place; a launcher knows the node of its ranks, not their devices."""
        if event.rank == self._source.rank:
            event.node = event.node or self._source.node
            event.device = event.device or self._source.device
        elif self._source.rank < 0:
            event.node = event.node or self._source.node


def _sample(measured: Measured) -> pb.Sample:
    place = measured.place
    listed = measured.listed or [Listed(0, measured.tokens, measured.sum_of_squares)]
    return pb.Sample(
        iteration=measured.iteration,
        epoch=place.epoch,
        started_at_unix_seconds=measured.started_at_unix_seconds,
        wall_seconds=measured.wall_seconds,
        compute=pb.ComputeSeconds(
            forward=measured.forward_seconds,
            backward=measured.backward_seconds,
            optimizer=measured.optimizer_seconds,
            data=measured.input_seconds or 0.0,
        ),
        waiting=pb.WaitingSeconds(
            tensor=measured.wait_tensor_seconds,
            pipeline=measured.wait_pipeline_seconds,
            gradient=measured.wait_gradient_seconds,
            vote=measured.wait_vote_seconds,
        ),
        micro_batches=[_micro_batch(each) for each in listed if not each.kept],
        kept_micro_batches=[_micro_batch(each) for each in listed if each.kept],
        position=None
        if place is NOWHERE
        else pb.Position(
            replica=place.replica,
            stage=place.stage,
            shard=place.shard,
            forward_flops_per_token=place.forward_flops_per_token or 0.0,
            forward_flops_per_squared_length=place.forward_flops_per_squared_length,
            backward_multiple=place.backward_multiple,
        ),
        loss=number(measured.loss),
        gradient_norm=number(measured.gradient_norm),
        peak_memory_bytes=measured.peak_memory_bytes,
        mark=pb.Mark.ValueType(measured.mark),
        traffic=_traffic(measured.channels, measured.began_seconds) if measured.channels else None,
    )


def _micro_batch(listed: Listed) -> pb.MicroBatch:
    return pb.MicroBatch(index=listed.index, tokens=listed.tokens, sum_of_squares=listed.squares)


def _traffic(channels: Sequence[Stamps], started_seconds: float) -> pb.Traffic:
    message = pb.Traffic()
    for kind, party, num_members, entered, took, num_bytes in channels:
        chosen = stamped_indices(len(entered))
        message.kinds.append(pb.ChannelKind.ValueType(kind))
        message.parties.append(party)
        message.num_members.append(num_members)
        message.num_operations.append(len(entered))
        message.num_bytes.append(sum(num_bytes))
        message.num_stamped.append(len(chosen))
        if kind != pb.CHANNEL_KIND_COLLECTIVE:
            message.entered_microseconds.extend([_microseconds(entered[k] - started_seconds) for k in chosen])
        if took:
            message.took_microseconds.extend([_microseconds(took[k]) for k in chosen])
            message.stamped_bytes.extend([num_bytes[k] for k in chosen])
    return message


def _microseconds(seconds: float) -> int:
    return min(max(round(seconds * 1e6), 0), 0xFFFFFFFF)
