"""Turns what clock, vote and traffic know of an iteration into what is emitted of it."""

import time
from collections.abc import Callable

import torch

from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.trainer_sdk.elastic.measure.clock import Clock, WaitKind
from evenkeel.trainer_sdk.elastic.measure.traffic import Traffic
from evenkeel.trainer_sdk.elastic.model.data import Documents
from evenkeel.trainer_sdk.elastic.model.model import BACKWARD_MULTIPLE
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.emit.measured import Listed, Measured, Place


def iteration_measured(
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
) -> Callable[[], Measured]:
    """What sorts the measurements of the iteration that ends now; any thread may call it, later.

    Takes the clock's seconds and the traffic's stamps, and nothing else: the training thread has no time to lose.
    ``loss`` is None where no vote was heard.
    """
    wall_seconds = time.perf_counter() - clock.began_seconds
    began_at_unix_seconds, began_seconds = clock.began_at_unix_seconds, clock.began_seconds
    computed, usage, waiting, channels = clock.take_compute(), clock.take_usage(), clock.take_waiting(), traffic.take()
    batches, kept, position = runtime.batches, runtime.kept, runtime.position
    models, device = runtime.models.values(), runtime.device

    def measured() -> Measured:
        listed = [_listed(batch.index, batch.documents) for batch in batches]
        listed += [_listed(index, documents, kept=True) for index, documents in kept]
        found = Measured(
            iteration=iteration,
            started_at_unix_seconds=began_at_unix_seconds,
            wall_seconds=wall_seconds,
            wait_tensor_seconds=waiting[WaitKind.TENSOR],
            wait_pipeline_seconds=waiting[WaitKind.PIPELINE],
            wait_gradient_seconds=waiting[WaitKind.GRADIENT],
            wait_vote_seconds=waiting[WaitKind.VOTE],
            tokens=sum(each.tokens for each in listed if not each.kept),
            sum_of_squares=sum(each.squares for each in listed if not each.kept),
            num_micro_batches=len(batches),
            loss=loss,
            gradient_norm=gradient_norm,
            peak_memory_bytes=int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0,
            mark=_mark(after_reshape, checkpoint),
            place=Place(
                epoch=epoch,
                replica=position.replica,
                stage=position.stage,
                shard=position.shard,
                forward_flops_per_token=sum(model.flops_per_token for model in models),
                forward_flops_per_squared_length=sum(model.flops_per_squared_length for model in models),
                backward_multiple=BACKWARD_MULTIPLE,
            ),
            listed=listed,
            channels=[each for each in channels if each.entered_seconds],
            began_seconds=began_seconds,
        )
        found.add(computed, usage)
        return found

    return measured


def _mark(after_reshape: bool, checkpoint: bool) -> "pb.Mark.ValueType":
    if after_reshape:
        return pb.MARK_RESHAPE
    return pb.MARK_CHECKPOINT if checkpoint else pb.MARK_UNSPECIFIED


def _listed(index: int, documents: Documents, *, kept: bool = False) -> Listed:
    return Listed(index, documents.num_tokens, documents.sum_of_squares, kept)
