"""A rank's slices from a checkpoint, whatever layout wrote it: only the parts that it needs are read."""

import torch

from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import Checkpoint, CheckpointFolder
from evenkeel.trainer_sdk.elastic.copies.checkpoint_manifest import Extent, parts_of
from evenkeel.trainer_sdk.elastic.state.shard_state import ParameterState, ShardState

TENSOR_KINDS = ParameterState._fields


def tensor_key(extent: Extent, kind: str) -> str:
    """Name of one tensor in a file."""
    return f"{extent.name}[{extent.start}:{extent.stop}].{kind}"


@torch.no_grad()
def read_state(folder: CheckpointFolder, checkpoint: Checkpoint, target: ShardState) -> None:
    """Fill ``target`` with what its rank holds under its layout.

    Raises:
        ValueError: The checkpoint is damaged, which is noted in its folder, or lacks something.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only jobs with checkpoints need it

    needed = parts_of(checkpoint.manifest.files, target.held)
    folder.verify(checkpoint, [file for file, _ in needed])
    for file, parts in needed:
        try:
            with safe_open(str(checkpoint.path / file.name), framework="pt") as stored:
                for extent, part in parts:
                    here = slice(part.start - extent.start, part.stop - extent.start)
                    index = (slice(None),) * target.ownership.specs[extent.name].cut_axis + (here,)
                    views = target.views(extent.name, part.start, part.stop)
                    for kind, view in zip(TENSOR_KINDS, views, strict=True):
                        view.copy_(stored.get_slice(tensor_key(extent, kind))[index])
        except SafetensorError as error:
            raise ValueError(f"checkpoint {checkpoint.path.name}: {file.name}: {error}") from error
