"""Turns what phases, vote and traffic know of an iteration into what is emitted of it."""

from collections.abc import Callable, Sequence

import torch

from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.trainer_sdk.elastic.measure.wait_kind import WaitKind
from evenkeel.trainer_sdk.elastic.model.data import Documents
from evenkeel.trainer_sdk.elastic.model.model import BACKWARD_MULTIPLE
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.emit.measured import Listed, Measured, Place, Stamps
from evenkeel.trainer_sdk.emit.phases import Phased


def iteration_measured(
    runtime: EpochRuntime,
    phased: Phased,
    channels: Sequence[Stamps],
    *,
    iteration: int,
    loss: float | None,
    gradient_norm: float | None,
    after_reshape: bool,
    checkpoint: bool,
) -> Callable[[], Measured]:
    """What sorts the measurements of an iteration; any thread may call it, later: the training thread has no time.

    ``loss`` is None where no vote was heard.
    """
    waited = phased.waited_seconds
    batches, kept, position = runtime.batches, runtime.kept, runtime.position
    models, device = runtime.models.values(), runtime.device

    def measured() -> Measured:
        listed = [_listed(batch.index, batch.documents) for batch in batches]
        listed += [_listed(index, documents, kept=True) for index, documents in kept]
        found = Measured(
            iteration=iteration,
            started_at_unix_seconds=phased.began_at_unix_seconds,
            wall_seconds=phased.wall_seconds,
            wait_tensor_seconds=waited.get(WaitKind.TENSOR, 0.0),
            wait_pipeline_seconds=waited.get(WaitKind.PIPELINE, 0.0),
            wait_gradient_seconds=waited.get(WaitKind.GRADIENT, 0.0),
            wait_vote_seconds=waited.get(WaitKind.VOTE, 0.0),
            tokens=sum(each.tokens for each in listed if not each.kept),
            sum_of_squares=sum(each.squares for each in listed if not each.kept),
            num_micro_batches=len(batches),
            loss=loss,
            gradient_norm=gradient_norm,
            peak_memory_bytes=int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0,
            mark=_mark(after_reshape, checkpoint),
            place=Place(
                epoch=runtime.epoch,
                replica=position.replica,
                stage=position.stage,
                shard=position.shard,
                forward_flops_per_token=sum(model.flops_per_token for model in models),
                forward_flops_per_squared_length=sum(model.flops_per_squared_length for model in models),
                backward_multiple=BACKWARD_MULTIPLE,
            ),
            listed=listed,
            channels=[each for each in channels if each.entered_seconds],
            began_seconds=phased.began_seconds,
        )
        found.add(phased.computed, phased.usage)
        return found

    return measured


def _mark(after_reshape: bool, checkpoint: bool) -> "pb.Mark.ValueType":
    if after_reshape:
        return pb.MARK_RESHAPE
    return pb.MARK_CHECKPOINT if checkpoint else pb.MARK_UNSPECIFIED


def _listed(index: int, documents: Documents, *, kept: bool = False) -> Listed:
    return Listed(index, documents.num_tokens, documents.sum_of_squares, kept)
