"""Iterations, events and progress with only what a test cares about."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evenkeel.contracts.batches import Batches, read_batches
from evenkeel.contracts.columns import HAS_LOSS, ITERATION, PRESENT, PROCESS
from evenkeel.services.telemetry.domain.observed import Arrived, ArrivedEvent, ArrivedProgress, EventKind
from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2


class Sample(NamedTuple):
    """One iteration of one rank, in a record of its own."""

    rank: int
    iteration: int
    epoch: int = 0
    incarnation: int = 0
    wall_seconds: float = 0.1
    offset: int = 0
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    wait_vote_seconds: float = 0.0
    tokens: int = 0
    sum_of_squares: float = 0.0
    loss: float | None = None
    started_at_unix_seconds: float = 1.7e9
    sequence: int = 0
    num_dropped: int = 0

    def message(self, job_id: str = "job") -> pb.Batch:
        """The batch that brings it."""
        of_process = {"job_id": job_id, "node": f"node-{self.rank // 4}", "device": f"device-{self.rank}"}
        of_iteration = {"flags": PRESENT, "loss": self.loss or 0.0}
        if self.loss is not None:
            of_iteration["flags"] |= HAS_LOSS
        values = {**self._asdict(), **of_process, **of_iteration, "num_iterations": 1}
        batch = pb.Batch()
        for column in (*PROCESS, *ITERATION):
            getattr(batch, column.name).append(values.get(column.name, 0))
        return batch


def sample(rank: int, iteration: int, **others: float) -> Sample:
    return Sample(rank, iteration, **others)  # type: ignore[arg-type]


def batches_of(samples: Sequence[Sample]) -> Batches:
    """What a fetch of these is parsed to."""
    return read_batches(pb.Batch.FromString(b"".join(each.message().SerializeToString() for each in samples)))


def arrived(
    samples: Sequence[Sample] = (),
    *,
    progress: Sequence[ArrivedProgress] = (),
    events: Sequence[ArrivedEvent] = (),
) -> Arrived:
    offsets = np.array([each.offset for each in samples], dtype=np.int64)
    return Arrived(batches_of(samples), offsets, list(progress), list(events))


def progress(rank: int, operation_count: int, *, incarnation: int = 0, seconds: float = 0.0) -> ArrivedProgress:
    report = process_pb2.Progress(
        at_unix_seconds=1.0,
        iteration=7,
        operation_count=operation_count,
        operation="forward",
        seconds_in_operation=seconds,
    )
    return ArrivedProgress(rank, incarnation, report)


def event(kind: EventKind, rank: int, *, incarnation: int = 0, at_seconds: float = 1.0) -> ArrivedEvent:
    return ArrivedEvent(at_seconds, kind, rank, incarnation, None)
