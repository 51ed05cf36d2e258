"""Checkpoints on disk: the training thread copies a rank's part, a helper thread writes it.

Every extent is written once, by one of its holders. A writer's file is followed by a note that names its size and
hash; the first writer of the layout collects the notes of all and then writes the manifest, which makes the checkpoint
complete. Nothing here ever stops training: an error is said once and the next checkpoint is tried again.
"""

import contextlib
import json
import logging
import shutil
import threading
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from evenkeel.layouts.json_schema import record_from
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import (
    CheckpointFolder,
    rename_durably,
    sha256_of,
    write_durably,
)
from evenkeel.trainer_sdk.elastic.copies.checkpoint_manifest import (
    CheckpointFile,
    Extent,
    Manifest,
    training_identity,
)
from evenkeel.trainer_sdk.elastic.copies.checkpoint_reader import TENSOR_KINDS, tensor_key
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState

_log = logging.getLogger(__name__)

_NOTES_POLL_SECONDS = 0.05
_NOTES_TIMEOUT_SECONDS = 600.0
"""For the slowest writer; also ends the wait for one that died."""

_AFTER_EPOCH_SECONDS = 30.0
"""The same once another epoch began: most likely somebody died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one rank writes of one checkpoint."""

    steps_applied: int
    epoch: int
    writers: tuple[int, ...]
    extents: tuple[Extent, ...]
    tensors: dict[str, Tensor]


class DiskCopies:
    """One rank's part in the checkpoints. Used by the training thread; each is written by a helper thread.

    Args:
        config: Job.
        rank: This rank.
        folder: The job's checkpoints; must be on storage that all nodes share.
    """

    def __init__(self, config: TrainingConfig, rank: int, folder: CheckpointFolder) -> None:
        self._config = config.checkpoint
        self._rank = rank
        self._folder = folder
        self._training = training_identity(config)
        self._epoch = -1
        self._assigned: dict[int, tuple[Extent, ...]] = {}
        self._writer: threading.Thread | None = None
        self._warned: set[str] = set()

    def enter(self, epoch: int, ownership: OwnershipMap) -> None:
        """An epoch begins. A checkpoint of an older one that is not complete soon stays so."""
        self._epoch = epoch
        self._assigned = assign_writers(ownership)

    def stepped(self, state: ShardState) -> bool:
        """A step was applied: copy this rank's part of a checkpoint, if one is due.

        Returns:
            Whether a checkpoint was due, which cost this thread the time of the copy.
        """
        if state.steps_applied % self._config.every_iterations:
            return False
        extents = self._assigned.get(self._rank, ())
        if not extents:
            return False
        if self._writer is not None and self._writer.is_alive():
            self._warn("busy", f"no checkpoint of step {state.steps_applied}: the one before is still being written")
            return False
        with torch.no_grad():
            tensors = {
                tensor_key(extent, kind): torch.empty(view.shape, dtype=view.dtype).copy_(view)
                for extent in extents
                for kind, view in zip(TENSOR_KINDS, state.views(*extent), strict=True)
            }
        part = _Part(
            steps_applied=state.steps_applied,
            epoch=self._epoch,
            writers=tuple(self._assigned),
            extents=extents,
            tensors=tensors,
        )
        writer = threading.Thread(target=self._try_to_write, args=(part,), name="evenkeel-checkpoint", daemon=True)
        try:
            writer.start()
        except RuntimeError as error:  # there may be no more threads
            self._tell_failure(part, error)
        else:
            self._writer = writer
        return True

    def close(self, timeout_seconds: float) -> None:
        """Wait for the checkpoint that is being written, for so long at most."""
        if self._writer is not None:
            self._writer.join(timeout_seconds)

    # ---- the helper thread

    def _try_to_write(self, part: _Part) -> None:
        try:
            self._write(part)
        except Exception as error:  # whatever it is, training goes on
            self._tell_failure(part, error)

    def _tell_failure(self, part: _Part, error: Exception) -> None:
        known = isinstance(error, OSError)
        self._warn(
            type(error).__name__,
            f"no checkpoint of step {part.steps_applied}: {error or type(error).__name__}",
            error=None if known else error,
        )
        self._note_failure(part, str(error))

    def _write(self, part: _Part) -> None:
        from safetensors import SafetensorError  # noqa: PLC0415 - only jobs with checkpoints need it
        from safetensors.torch import save_file  # noqa: PLC0415

        if part.steps_applied in self._folder.steps():
            return  # written before a roll back: the same numbers up to rounding
        path = self._folder.path_of(part.steps_applied, part.epoch)
        path.mkdir(parents=True, exist_ok=True)
        final, written = path / f"rank-{self._rank}.safetensors", path / f"rank-{self._rank}.safetensors.new"
        try:
            save_file(part.tensors, str(written))
        except SafetensorError as error:  # its word for a full disk
            written.unlink(missing_ok=True)
            raise OSError(str(error)) from error
        file = CheckpointFile(
            name=final.name, num_bytes=written.stat().st_size, sha256=sha256_of(written), extents=part.extents
        )
        rename_durably(written, final)
        write_durably(path / f"rank-{self._rank}.json", json.dumps(asdict(file)).encode())
        if self._rank == part.writers[0]:
            self._complete(part)

    def _complete(self, part: _Part) -> None:
        path = self._folder.path_of(part.steps_applied, part.epoch)
        notes = [path / f"rank-{rank}.json" for rank in part.writers]
        deadline = time.monotonic() + _NOTES_TIMEOUT_SECONDS
        while not all(note.exists() for note in notes):
            if part.epoch != self._epoch:
                deadline = min(deadline, time.monotonic() + _AFTER_EPOCH_SECONDS)
            if time.monotonic() > deadline:
                _log.info("the checkpoint of step %d stays incomplete: not every rank wrote", part.steps_applied)
                return
            time.sleep(_NOTES_POLL_SECONDS)
        said = [json.loads(note.read_text()) for note in notes]
        if any("failure" in one for one in said):
            shutil.rmtree(path, ignore_errors=True)  # a full disk must not fill with halves
            return
        files, steps = tuple(record_from(CheckpointFile, one) for one in said), part.steps_applied
        manifest = Manifest(steps_applied=steps, epoch=part.epoch, training=self._training, files=files)
        self._folder.complete(manifest, keep=self._config.keep)
        for note in notes:
            with contextlib.suppress(OSError):
                note.unlink()
        _log.info("checkpoint of step %d is complete: %s", part.steps_applied, path)

    def _note_failure(self, part: _Part, problem: str) -> None:
        path = self._folder.path_of(part.steps_applied, part.epoch)
        with contextlib.suppress(OSError):
            write_durably(path / f"rank-{self._rank}.json", json.dumps({"failure": problem}).encode())

    def _warn(self, kind: str, message: str, error: Exception | None = None) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            words = "rank %d: %s; training goes on, further cases are not reported"
            _log.warning(words, self._rank, message, exc_info=error)


def assign_writers(ownership: OwnershipMap) -> dict[int, tuple[Extent, ...]]:
    """Which rank writes which extents, so that everything is written once: of the holders, who has least so far."""
    written = dict.fromkeys(ownership.layout.ranks, 0)
    assigned: dict[int, list[Extent]] = {}
    for spec in ownership.specs.values():
        for stretch in ownership.stretches(spec.name):
            writer = min(stretch.ranks, key=lambda rank: (written[rank], rank))
            written[writer] += (stretch.stop - stretch.start) * spec.row_elements
            assigned.setdefault(writer, []).append(Extent(spec.name, stretch.start, stretch.stop))
    return {rank: tuple(extents) for rank, extents in sorted(assigned.items())}
