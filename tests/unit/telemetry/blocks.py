"""Blocks as the service makes them, out of messages."""

from collections.abc import Sequence

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from services.telemetry.adapters.block_builder import BlockBuilder, SampleSources
from services.telemetry.adapters.wire_cursor import Wire
from services.telemetry.domain.sample_block import SampleBlock


def block_of(samples: Sequence[tuple[int, pb.Sample]], *, offsets: Sequence[int] | None = None) -> SampleBlock:
    """One row a (rank, sample), all of which must be believed."""
    raws = [sample.SerializeToString() for _, sample in samples]
    ends = np.cumsum([len(raw) for raw in raws], dtype=np.int64)
    ranks = [rank for rank, _ in samples]
    sources = SampleSources(
        begins=ends - np.array([len(raw) for raw in raws], dtype=np.int64),
        ends=ends,
        ranks=np.array(ranks, dtype=np.int64),
        incarnations=np.zeros(len(raws), dtype=np.int64),
        offsets=np.array(range(len(raws)) if offsets is None else offsets, dtype=np.int64),
        nodes=[f"node-{rank // 4}" for rank in ranks],
        devices=[f"device-{rank}" for rank in ranks],
    )
    block, believed = BlockBuilder(Wire(raws)).build(sources)
    assert believed.all()
    return block
