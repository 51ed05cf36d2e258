"""Turns what the clock and the vote know of an iteration into the sample that is emitted."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from evenkeel.layouts.layout import Position
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.elastic.measure.clock import Clock, WaitKind
from evenkeel.trainer_sdk.elastic.measure.traffic import Traffic, traffic_message
from evenkeel.trainer_sdk.elastic.model.data import Documents, MicroBatch
from evenkeel.trainer_sdk.elastic.model.model import BACKWARD_MULTIPLE
from evenkeel.trainer_sdk.elastic.model.stage_model import StageModel
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.groups.channel import Stamps


def iteration_sample(
    runtime: EpochRuntime,
    clock: Clock,
    traffic: Traffic,
    *,
    iteration: int,
    epoch: int,
    loss: float | None,
    gradient_norm: float | None,
    after_reshape: bool,
    checkpoint: bool,
) -> Callable[[], pb.Sample]:
    """What builds the sample of the iteration that ends now; any thread may call it, later.

    Takes the clock's seconds and the traffic's stamps, and nothing else: the training thread has no time to lose.
    ``loss`` is None where no vote was heard.
    """
    return partial(
        _sample,
        wall_seconds=time.perf_counter() - clock.began_seconds,
        began_at_unix_seconds=clock.began_at_unix_seconds,
        began_seconds=clock.began_seconds,
        compute=clock.take_compute(),
        waiting=clock.take_waiting(),
        channels=traffic.take(),
        batches=runtime.batches,
        kept=runtime.kept,
        position=runtime.position,
        models=runtime.models,
        device=runtime.device,
        iteration=iteration,
        epoch=epoch,
        loss=loss,
        gradient_norm=gradient_norm,
        after_reshape=after_reshape,
        checkpoint=checkpoint,
    )


def _sample(
    *,
    wall_seconds: float,
    began_at_unix_seconds: float,
    began_seconds: float,
    compute: Mapping[ComputeKind, float],
    waiting: Mapping[WaitKind, float],
    channels: Sequence[Stamps],
    batches: Sequence[MicroBatch],
    kept: Sequence[tuple[int, Documents]],
    position: Position,
    models: Mapping[int, StageModel],
    device: torch.device,
    iteration: int,
    epoch: int,
    loss: float | None,
    gradient_norm: float | None,
    after_reshape: bool,
    checkpoint: bool,
) -> pb.Sample:
    return pb.Sample(
        iteration=iteration,
        epoch=epoch,
        started_at_unix_seconds=began_at_unix_seconds,
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
        micro_batches=[_micro_batch(batch.index, batch.documents) for batch in batches],
        kept_micro_batches=[_micro_batch(index, documents) for index, documents in kept],
        position=pb.Position(
            replica=position.replica,
            stage=position.stage,
            shard=position.shard,
            forward_flops_per_token=sum(model.flops_per_token for model in models.values()),
            forward_flops_per_squared_length=sum(model.flops_per_squared_length for model in models.values()),
            backward_multiple=BACKWARD_MULTIPLE,
        ),
        loss=loss,
        gradient_norm=gradient_norm,
        peak_memory_bytes=_peak_memory_bytes(device),
        mark=_mark(after_reshape, checkpoint),
        traffic=traffic_message(channels, began_seconds) if any(one.entered_seconds for one in channels) else None,
    )


def _mark(after_reshape: bool, checkpoint: bool) -> "pb.Mark.ValueType":
    if after_reshape:
        return pb.MARK_RESHAPE
    return pb.MARK_CHECKPOINT if checkpoint else pb.MARK_UNSPECIFIED


def _micro_batch(index: int, documents: Documents) -> pb.MicroBatch:
    return pb.MicroBatch(index=index, tokens=documents.num_tokens, sum_of_squares=documents.sum_of_squares)


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":  # named: the thread that builds samples has another current device
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
