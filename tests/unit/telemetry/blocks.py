"""Blocks as the service makes them, out of messages."""

from collections.abc import Sequence

from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from services.telemetry.adapters.block_builder import BlockBuilder
from services.telemetry.domain.sample_block import SampleBlock


def block_of(samples: Sequence[tuple[int, pb.Sample]], *, offsets: Sequence[int] | None = None) -> SampleBlock:
    """One row a (rank, sample), all of which must be believed."""
    builder = BlockBuilder()
    for index, (rank, sample) in enumerate(samples):
        head = (rank, 0, index if offsets is None else offsets[index])
        builder.add([sample.SerializeToString()], head=head, place=(f"node-{rank // 4}", f"device-{rank}"))
    block, believed = builder.build()
    assert believed.all()
    return block
