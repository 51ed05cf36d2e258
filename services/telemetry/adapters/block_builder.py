"""Makes one block of arrays of the samples of many records, from the bytes that they are in the records.

Every field is read out of all samples in one compiled step. Lists of micro-batches, which ranks of one replica share,
are read once each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from evenkeel.numeric.arrays import Bools, Ints
from evenkeel.services.telemetry.adapters.byte_table import distinct
from evenkeel.services.telemetry.adapters.sample_scan import scan_samples
from evenkeel.services.telemetry.adapters.workload_reader import read_workloads
from evenkeel.services.telemetry.domain.sample_block import Names, SampleBlock
from evenkeel.services.telemetry.domain.validate import HostileRecordError, check_micro_batches
from evenkeel.telemetry.v1 import telemetry_pb2 as pb


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


def build_block(buffer: bytes, sources: SampleSources) -> tuple[SampleBlock, Bools]:
    """The block, and for each row whether it can be believed; a row that cannot holds no numbers to use.

    Args:
        buffer: Where the samples are.
        sources: Which they are.
    """
    wire = np.frombuffer(buffer, dtype=np.uint8)
    found = scan_samples(wire, sources.begins, sources.ends)
    lists, traffics, kept = found.parts[:, 0:2], found.parts[:, 2:4], found.parts[:, 4:6]
    believed = found.plain
    workload_of, firsts = distinct(wire, lists[:, 0], lists[:, 1])
    workloads, hostile = read_workloads(wire, lists[firsts, 0], lists[firsts, 1])
    if (kept[:, 1] > kept[:, 0]).any():
        _check_kept(buffer, kept.tolist(), believed)
    traffic: list[bytes] = []
    if (traffics[:, 1] > traffics[:, 0]).any():
        traffic = _checked_traffic(buffer, traffics.tolist(), believed)
    block = SampleBlock(
        ranks=sources.ranks,
        incarnations=sources.incarnations,
        epochs=found.keys[1],
        iterations=found.keys[0],
        offsets=sources.offsets,
        node_of=sources.node_of,
        device_of=sources.device_of,
        names=sources.names,
        numbers=found.numbers,
        has_loss=found.has[0],
        has_gradient_norm=found.has[1],
        workload_of=workload_of,
        workloads=workloads,
        work=workloads.work(),
        traffic=traffic,
    )
    believed &= block.credible()
    if hostile:
        believed &= ~np.isin(block.workload_of, hostile)
    return block, believed


def _check_kept(buffer: bytes, spans: Sequence[Sequence[int]], believed: Bools) -> None:
    """Only looked at: somebody's sample names them already, so their work is in no sum of this rank's."""
    sound: dict[bytes, bool] = {b"": True}
    for row, (begin, end) in enumerate(spans):
        raw = buffer[begin:end]
        if raw not in sound:
            try:
                check_micro_batches(pb.Sample.FromString(raw).kept_micro_batches)
                sound[raw] = True
            except (HostileRecordError, DecodeError):
                sound[raw] = False
        if not sound[raw]:
            believed[row] = False


def _checked_traffic(buffer: bytes, spans: Sequence[Sequence[int]], believed: Bools) -> list[bytes]:
    """Each sample's serialised traffic; empty where there is none."""
    found = []
    for row, (begin, end) in enumerate(spans):
        traffic = b""
        if end > begin:
            try:
                traffic = pb.Sample.FromString(buffer[begin:end]).traffic.SerializeToString()
            except DecodeError:
                believed[row] = False
        found.append(traffic)
    return found
