"""A rank's slices from a checkpoint, whatever layout wrote it: only the parts that it needs are read."""

from collections.abc import Sequence

import torch

from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import Checkpoint, CheckpointFolder
from evenkeel.trainer_sdk.elastic.copies.checkpoint_manifest import CheckpointFile, files_with
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.extents import Extent
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Slice
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState

TENSOR_KINDS = ("value", "exp_avg", "exp_avg_sq")


def tensor_key(extent: Extent, kind: str) -> str:
    """Name of one tensor in a file."""
    return f"{extent.name}[{extent.start}:{extent.stop}].{kind}"


def read_state(
    folder: CheckpointFolder, checkpoint: Checkpoint, ownership: OwnershipMap, rank: int, target: ShardState
) -> None:
    """Fill ``target`` with what ``rank`` holds under the layout of ``ownership``.

    Raises:
        ValueError: The checkpoint is damaged, which is noted in its folder, or lacks something.
    """
    wanted = {name: held for name, held in ownership.held_by(rank).items() if len(held)}
    parts = {name: files_with(checkpoint.manifest.files, name, held.start, held.stop) for name, held in wanted.items()}
    needed = {file.name: file for found in parts.values() for file, _ in found}
    folder.verify(checkpoint, list(needed.values()))
    by_file: dict[str, list[tuple[ParameterSpec, Slice, Extent]]] = {name: [] for name in needed}
    for name, found in parts.items():
        for file, extent in found:
            by_file[file.name].append((ownership.specs[name], wanted[name], extent))
    for file in needed.values():
        _read_file(checkpoint, file, by_file[file.name], target)


def _read_file(
    checkpoint: Checkpoint,
    file: CheckpointFile,
    parts: Sequence[tuple[ParameterSpec, Slice, Extent]],
    target: ShardState,
) -> None:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only jobs with checkpoints need it

    try:
        with safe_open(str(checkpoint.path / file.name), framework="pt") as stored:
            for spec, held, extent in parts:
                start, stop = max(held.start, extent.start), min(held.stop, extent.stop)
                here = slice(start - extent.start, stop - extent.start)
                index = (slice(None),) * spec.cut_axis + (here,)
                tensors = target.parameters[spec.name].tensors()
                for kind, tensor in zip(TENSOR_KINDS, tensors, strict=True):
                    read = stored.get_slice(tensor_key(extent, kind))[index]
                    with torch.no_grad():
                        tensor.narrow(spec.cut_axis, start - held.start, stop - start).copy_(read)
    except SafetensorError as error:
        raise ValueError(f"checkpoint {checkpoint.path.name}: {file.name}: {error}") from error
