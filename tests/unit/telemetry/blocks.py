"""Blocks as the service makes them, out of messages."""

from collections.abc import Sequence

import numpy as np

from evenkeel.services.telemetry.adapters.block_builder import SampleSources, build_block
from evenkeel.services.telemetry.domain.observed import ArrivedSample
from evenkeel.services.telemetry.domain.sample_block import COLUMNS, Names, SampleBlock, Workloads
from evenkeel.telemetry.v1 import telemetry_pb2 as pb


def block_of(samples: Sequence[tuple[int, pb.Sample]], *, offsets: Sequence[int] | None = None) -> SampleBlock:
    """One row a (rank, sample), all of which must be believed."""
    raws = [sample.SerializeToString() for _, sample in samples]
    ends = np.cumsum([len(raw) for raw in raws], dtype=np.int64)
    ranks = [rank for rank, _ in samples]
    names = [*(f"node-{rank // 4}" for rank in ranks), *(f"device-{rank}" for rank in ranks)]
    sources = SampleSources(
        begins=ends - np.array([len(raw) for raw in raws], dtype=np.int64),
        ends=ends,
        ranks=np.array(ranks, dtype=np.int64),
        incarnations=np.zeros(len(raws), dtype=np.int64),
        offsets=np.array(range(len(raws)) if offsets is None else offsets, dtype=np.int64),
        node_of=np.arange(len(ranks)),
        device_of=np.arange(len(ranks)) + len(ranks),
        names=Names(names),
    )
    block, believed = build_block(b"".join(raws), sources)
    assert believed.all()
    return block


def block_of_arrived(samples: Sequence[ArrivedSample]) -> SampleBlock:
    """One row a sample, with only what the joining of frames looks at."""
    size, nothing = len(samples), np.zeros(0)
    numbers = np.zeros((size, len(COLUMNS)))
    numbers[:, 1] = [sample.wall_seconds for sample in samples]
    return SampleBlock(
        ranks=np.array([sample.rank for sample in samples], dtype=np.int64),
        incarnations=np.array([sample.incarnation for sample in samples], dtype=np.int64),
        epochs=np.array([sample.epoch for sample in samples], dtype=np.int64),
        iterations=np.array([sample.iteration for sample in samples], dtype=np.int64),
        offsets=np.array([sample.offset for sample in samples], dtype=np.int64),
        node_of=np.arange(size),
        device_of=np.arange(size) + size,
        names=Names([*(sample.node for sample in samples), *(sample.device for sample in samples)]),
        numbers=numbers,
        has_loss=np.zeros(size, dtype=np.bool_),
        has_gradient_norm=np.zeros(size, dtype=np.bool_),
        workload_of=np.zeros(size, dtype=np.int64),
        workloads=Workloads(
            sizes=nothing.astype(np.int64),
            indexes=nothing.astype(np.int64),
            tokens=nothing.astype(np.int64),
            sums_of_squares=nothing,
        ),
        work=np.zeros((0, 2)),
        traffic=[],
    )
