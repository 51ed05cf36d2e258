"""Makes one block of arrays of the samples of many records, from the bytes that they are in the records.

Every field is read out of all samples at once. Lists of micro-batches, which ranks of one replica share, are cut out as
they are and read once each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from services.telemetry.adapters.wire_cursor import Wire, WireCursor
from services.telemetry.adapters.workload_reader import read_workloads
from services.telemetry.domain.sample_block import COLUMNS, Bools, Floats, Ints, Names, SampleBlock
from services.telemetry.domain.validate import MAX_MICRO_BATCHES, HostileRecordError, check_micro_batches


def _numbers_of(message: Descriptor) -> dict[str, int]:
    return {field.name: field.number for field in message.fields}


_NUMBER = _numbers_of(pb.Sample.DESCRIPTOR)
_POSITION = _numbers_of(pb.Position.DESCRIPTOR)
_COLUMN = {name: place for place, name in enumerate(COLUMNS)}

_COMPUTE = {name: f"{name}_seconds" for name in ("forward", "backward", "optimizer", "data")}
_WAITING = {name: f"{name}_wait_seconds" for name in ("tensor", "pipeline", "gradient", "vote")}
_SHARE = {"replica": "replicas", "stage": "stages", "shard": "shards"}
_COST = ("forward_flops_per_token", "forward_flops_per_squared_length", "backward_multiple")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSources:
    """Where each sample is and who sent it, one item a sample.

    Attributes:
        begins: Its first byte on the wire.
        ends: Behind its last byte.
        ranks: Rank.
        incarnations: Which process of the rank.
        offsets: Offset of the record.
        node_of: Which of the ``names`` is the node that it ran on.
        device_of: Which of them is the device of the node.
        names: Nodes and devices.
    """

    begins: Ints
    ends: Ints
    ranks: Ints
    incarnations: Ints
    offsets: Ints
    node_of: Ints
    device_of: Ints
    names: Names


class BlockBuilder:
    """Makes blocks out of one wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def build(self, sources: SampleSources) -> tuple[SampleBlock, Bools]:
        """The block, and for each row whether it can be believed; a row that cannot holds no numbers to use."""
        cursor, buffer = WireCursor(self._wire, sources.begins, sources.ends), self._wire.buffer
        numbers = np.zeros((len(sources.begins), len(COLUMNS)))
        iterations, epochs = cursor.int64s(_NUMBER["iteration"]), cursor.int64s(_NUMBER["epoch"])
        for name in ("started_at_unix_seconds", "wall_seconds"):
            numbers[:, _COLUMN[name]] = cursor.doubles(_NUMBER[name])
        for message, columns, fields in (
            ("compute", _COMPUTE, _numbers_of(pb.ComputeSeconds.DESCRIPTOR)),
            ("waiting", _WAITING, _numbers_of(pb.WaitingSeconds.DESCRIPTOR)),
        ):
            entered = cursor.enter(_NUMBER[message])
            for name, column in columns.items():
                numbers[:, _COLUMN[column]] = cursor.doubles(fields[name])
            cursor.leave(entered)
        begins, ends = cursor.spans(_NUMBER["micro_batches"], most=MAX_MICRO_BATCHES)
        self._read_position(cursor, numbers)
        has_loss = cursor.here(_NUMBER["loss"])
        numbers[:, _COLUMN["losses"]] = cursor.doubles(_NUMBER["loss"])
        has_norm = cursor.here(_NUMBER["gradient_norm"])
        numbers[:, _COLUMN["gradient_norms"]] = cursor.doubles(_NUMBER["gradient_norm"])
        numbers[:, _COLUMN["peak_memory_bytes"]] = cursor.int64s(_NUMBER["peak_memory_bytes"])
        numbers[:, _COLUMN["marks"]] = cursor.int32s(_NUMBER["mark"])
        traffic_begins, traffic_ends = cursor.spans(_NUMBER["traffic"], most=1)
        kept_begins, kept_ends = cursor.spans(_NUMBER["kept_micro_batches"], most=MAX_MICRO_BATCHES)
        cursor.end()
        believed = cursor.plain
        raws = self._wire.cut(begins, ends)
        lists = {raw: number for number, raw in enumerate(dict.fromkeys(raws))}
        workload_of = np.fromiter(map(lists.__getitem__, raws), dtype=np.int64, count=len(raws))
        workloads, hostile = read_workloads(list(lists))
        if (kept_ends > kept_begins).any():
            _check_kept(buffer, kept_begins.tolist(), kept_ends.tolist(), believed)
        traffic: list[bytes] = []
        if (traffic_ends > traffic_begins).any():
            traffic = _checked_traffic(buffer, traffic_begins.tolist(), traffic_ends.tolist(), believed)
        block = SampleBlock(
            ranks=sources.ranks,
            incarnations=sources.incarnations,
            epochs=epochs,
            iterations=iterations,
            offsets=sources.offsets,
            node_of=sources.node_of,
            device_of=sources.device_of,
            names=sources.names,
            numbers=numbers,
            has_loss=has_loss,
            has_gradient_norm=has_norm,
            workload_of=workload_of,
            workloads=workloads,
            work=workloads.work(),
            traffic=traffic,
        )
        believed &= block.credible()
        if hostile:
            believed &= ~np.isin(block.workload_of, hostile)
        return block, believed

    @staticmethod
    def _read_position(cursor: WireCursor, numbers: Floats) -> None:
        entered = cursor.enter(_NUMBER["position"])
        for name, column in _SHARE.items():
            numbers[:, _COLUMN[column]] = cursor.int32s(_POSITION[name])
        for name in _COST:
            numbers[:, _COLUMN[name]] = cursor.doubles(_POSITION[name])
        cursor.leave(entered)


def _check_kept(buffer: bytes, begins: Sequence[int], ends: Sequence[int], believed: Bools) -> None:
    """Only looked at: somebody's sample names them already, so their work is in no sum of this rank's."""
    sound: dict[bytes, bool] = {b"": True}
    for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        raw = buffer[begin:end]
        if raw not in sound:
            try:
                check_micro_batches(pb.Sample.FromString(raw).kept_micro_batches)
                sound[raw] = True
            except (HostileRecordError, DecodeError):
                sound[raw] = False
        if not sound[raw]:
            believed[row] = False


def _checked_traffic(buffer: bytes, begins: Sequence[int], ends: Sequence[int], believed: Bools) -> list[bytes]:
    """Each sample's serialised traffic; empty where there is none."""
    found = []
    for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        traffic = b""
        if end > begin:
            try:
                traffic = pb.Sample.FromString(buffer[begin:end]).traffic.SerializeToString()
            except DecodeError:
                believed[row] = False
        found.append(traffic)
    return found
