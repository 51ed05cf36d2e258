"""Turns what the clock and the vote know of an iteration into the sample that is emitted."""

import resource
import sys

import torch
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from trainer_sdk.devices.device import ComputeKind
from trainer_sdk.elastic.clock import Clock, WaitKind
from trainer_sdk.elastic.data import Documents
from trainer_sdk.elastic.model import BACKWARD_MULTIPLE
from trainer_sdk.elastic.runtime import EpochRuntime


def iteration_sample(
    runtime: EpochRuntime,
    clock: Clock,
    *,
    iteration: int,
    epoch: int,
    started_at_unix_seconds: float,
    wall_seconds: float,
    loss: float | None,
    gradient_norm: float | None,
    after_reshape: bool,
) -> pb.Sample:
    """The sample of one finished iteration; takes the clock's seconds. ``loss`` is None where no vote was heard."""
    compute, waiting = clock.take_compute(), clock.take_waiting()
    position = runtime.position
    return pb.Sample(
        iteration=iteration,
        epoch=epoch,
        started_at_unix_seconds=started_at_unix_seconds,
        wall_seconds=wall_seconds,
        compute=pb.ComputeSeconds(
            forward=compute.get(ComputeKind.FORWARD, 0.0),
            backward=compute.get(ComputeKind.BACKWARD, 0.0),
            optimizer=compute.get(ComputeKind.OPTIMIZER, 0.0),
            data=compute.get(ComputeKind.DATA, 0.0),
        ),
        waiting=pb.WaitingSeconds(
            tensor=waiting[WaitKind.TENSOR],
            pipeline=waiting[WaitKind.PIPELINE],
            gradient=waiting[WaitKind.GRADIENT],
            vote=waiting[WaitKind.VOTE],
        ),
        micro_batches=[_micro_batch(batch.index, batch.documents) for batch in runtime.batches],
        kept_micro_batches=[_micro_batch(index, documents) for index, documents in runtime.kept],
        position=pb.Position(
            replica=position.replica,
            stage=position.stage,
            shard=position.shard,
            forward_flops_per_token=runtime.model.flops_per_token,
            forward_flops_per_squared_length=runtime.model.flops_per_squared_length,
            backward_multiple=BACKWARD_MULTIPLE,
        ),
        loss=loss,
        gradient_norm=gradient_norm,
        peak_memory_bytes=_peak_memory_bytes(),
        mark=pb.MARK_RESHAPE if after_reshape else pb.MARK_UNSPECIFIED,
    )


def _micro_batch(index: int, documents: Documents) -> pb.MicroBatch:
    return pb.MicroBatch(index=index, tokens=documents.num_tokens, sum_of_squares=documents.sum_of_squares)


def _peak_memory_bytes() -> int:
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
