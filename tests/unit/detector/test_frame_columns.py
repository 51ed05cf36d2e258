"""A frame says the same in columns as entry by entry; columns that do not fit together are refused."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.common.kafka import RejectedRecordError
from evenkeel.services.detector.adapters.frame_codec import frame_from_proto
from evenkeel.services.detector.domain.observation import FrameObservation
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

# Measurements, and what a broken clock or counter may have made of them.
NUMBERS = st.one_of(st.floats(0.0, 1e6), st.floats(), st.sampled_from([0.0, -1.0, 1e39, 1e41]))
FEW = st.integers(0, 3)


@st.composite
def frames(draw: st.DrawFn) -> pb.Frame:
    """A frame of entries; ranks of one replica share their micro-batches."""
    workloads = [
        [
            pb.MicroBatch(index=i, tokens=draw(st.integers(0, 10_000)), sum_of_squares=draw(NUMBERS))
            for i in range(draw(FEW))
        ]
        for _ in range(2)
    ]
    entries = []
    for rank in sorted(draw(st.sets(st.integers(0, 1000), max_size=6))):
        sample = pb.Sample(
            epoch=2,
            started_at_unix_seconds=draw(NUMBERS),
            wall_seconds=draw(NUMBERS),
            compute=pb.ComputeSeconds(
                forward=draw(NUMBERS), backward=draw(NUMBERS), optimizer=draw(NUMBERS), data=draw(NUMBERS)
            ),
            waiting=pb.WaitingSeconds(
                tensor=draw(NUMBERS), pipeline=draw(NUMBERS), gradient=draw(NUMBERS), vote=draw(NUMBERS)
            ),
            mark=draw(st.sampled_from(pb.Mark.values())),
            loss=draw(st.none() | NUMBERS),
            gradient_norm=draw(st.none() | NUMBERS),
            position=pb.Position(
                replica=rank % 2,
                stage=draw(FEW),
                shard=draw(FEW),
                forward_flops_per_token=draw(NUMBERS),
                forward_flops_per_squared_length=draw(NUMBERS),
                backward_multiple=draw(NUMBERS),
            ),
            micro_batches=workloads[rank % 2],
        )
        device = f"device-{draw(FEW)}"
        entries.append(pb.FrameEntry(rank=rank, incarnation=draw(FEW), node="node", device=device, sample=sample))
    return pb.Frame(iteration=5, epoch=2, closed_at_unix_seconds=1.0, entries=entries)


def in_columns(frame: pb.Frame, *, lean: bool) -> pb.Frame:
    """The same in columns; ``lean`` leaves out those of zeros, as the telemetry service does."""
    samples = [entry.sample for entry in frame.entries]
    names = sorted({entry.node for entry in frame.entries} | {entry.device for entry in frame.entries})
    lists: list[list[pb.MicroBatch]] = []
    workload_of = []
    for sample in samples:
        if list(sample.micro_batches) not in lists:
            lists.append(list(sample.micro_batches))
        workload_of.append(lists.index(list(sample.micro_batches)))
    named = [one for each in lists for one in each]
    columns = dict[str, Sequence[Any]](
        ranks=[entry.rank for entry in frame.entries],
        incarnations=[entry.incarnation for entry in frame.entries],
        names=names,
        node_of=[names.index(entry.node) for entry in frame.entries],
        device_of=[names.index(entry.device) for entry in frame.entries],
        started_at_unix_seconds=[one.started_at_unix_seconds for one in samples],
        wall_seconds=[one.wall_seconds for one in samples],
        forward_seconds=[one.compute.forward for one in samples],
        backward_seconds=[one.compute.backward for one in samples],
        optimizer_seconds=[one.compute.optimizer for one in samples],
        data_seconds=[one.compute.data for one in samples],
        tensor_wait_seconds=[one.waiting.tensor for one in samples],
        pipeline_wait_seconds=[one.waiting.pipeline for one in samples],
        gradient_wait_seconds=[one.waiting.gradient for one in samples],
        vote_wait_seconds=[one.waiting.vote for one in samples],
        losses=[one.loss for one in samples],
        has_loss=[one.HasField("loss") for one in samples],
        gradient_norms=[one.gradient_norm for one in samples],
        has_gradient_norm=[one.HasField("gradient_norm") for one in samples],
        marks=[one.mark for one in samples],
        replicas=[one.position.replica for one in samples],
        stages=[one.position.stage for one in samples],
        shards=[one.position.shard for one in samples],
        forward_flops_per_token=[one.position.forward_flops_per_token for one in samples],
        forward_flops_per_squared_length=[one.position.forward_flops_per_squared_length for one in samples],
        backward_multiple=[one.position.backward_multiple for one in samples],
        workload_of=workload_of,
        workload_sizes=[len(each) for each in lists],
        micro_batch_indexes=[one.index for one in named],
        micro_batch_tokens=[one.tokens for one in named],
        micro_batch_sums_of_squares=[one.sum_of_squares for one in named],
    )
    if lean:
        columns = {
            name: values for name, values in columns.items() if name in ("ranks", "workload_sizes") or any(values)
        }
    return pb.Frame(
        iteration=frame.iteration,
        epoch=frame.epoch,
        closed_at_unix_seconds=frame.closed_at_unix_seconds,
        columns=pb.FrameColumns(**columns),
    )


@given(frames(), st.booleans())
def test_columns_say_what_entries_do(frame: pb.Frame, lean: bool) -> None:
    by_entries, by_columns = (frame_from_proto("job", 3, each) for each in (frame, in_columns(frame, lean=lean)))
    for field in fields(FrameObservation):
        if field.name != "micro_batches":  # once a list in columns, once a rank in entries
            one, other = (getattr(each, field.name) for each in (by_entries, by_columns))
            np.testing.assert_array_equal(one, other, err_msg=field.name)


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"wall_seconds": [1.0]}, id="a rank without a time"),
        pytest.param({"has_loss": [True] * 3}, id="one loss too many"),
        pytest.param({"node_of": [0, 1], "names": ["here"]}, id="a node that is not named"),
        pytest.param({"workload_sizes": [1], "micro_batch_tokens": [5, 5]}, id="tokens of no micro-batch"),
        pytest.param({"workload_sizes": [2**31 - 1]}, id="more micro-batches than there are"),
        pytest.param({"workload_sizes": [2, -1]}, id="less micro-batches than none"),
        pytest.param({"workload_sizes": [0], "workload_of": [0, 1]}, id="a list that is not there"),
        pytest.param({"workload_sizes": [0], "workload_of": [0, -1]}, id="a list before the first"),
        pytest.param({"ranks": [3, 3]}, id="a rank twice"),
        pytest.param({"ranks": [-1, 3]}, id="a negative rank"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, Any]) -> None:
    frame = pb.Frame(columns=pb.FrameColumns(**{"ranks": [0, 1], **columns}))
    with pytest.raises(RejectedRecordError):
        frame_from_proto("job", 0, frame)
