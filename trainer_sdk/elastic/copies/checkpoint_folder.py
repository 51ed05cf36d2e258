"""A job's checkpoints on disk: which are complete, which are sound, which may go. Knows files, not tensors.

``<directory>/<job>/step-<steps>.epoch-<epoch>/`` holds one file per writing rank and, once all of them are there, the
manifest. Every file appears under its name by a rename after its bytes are on disk. Several ranks may look at one
folder at once; only the rank that writes a manifest removes anything while a job runs.
"""

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenkeel.trainer_sdk.elastic.copies.checkpoint_manifest import (
    CheckpointFile,
    Manifest,
    manifest_from_text,
    manifest_to_text,
)

_log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_UNSOUND = "manifest.unsound.json"
_RUNS = "runs"
_NAME = re.compile(r"step-(\d+)\.epoch-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint: its folder and what its manifest says."""

    path: Path
    manifest: Manifest


class CheckpointFolder:
    """The checkpoints of one job.

    Args:
        directory: As in the job file; the job's own folder lies in it.
        name: The job's id, without the number of the run.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.root = directory / name

    def require_writable(self) -> None:
        """Make the job's folder and try to write to it.

        Raises:
            ValueError: That does not work; the message says what to do.
        """
        probe = self.root / f".writable-{uuid.uuid4().hex}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ValueError(
                f"checkpoint directory {self.root}: {error.strerror or error}; name a folder that this job may write "
                "to in the job file's config.checkpoint.directory"
            ) from error

    def next_run(self) -> int:
        """Count one more run of the job over these checkpoints: 1 for the first.

        Raises:
            OSError: The count cannot be written.
        """
        counted = self.root / _RUNS
        text = counted.read_text().strip() if counted.exists() else ""
        run = int(text) + 1 if text.isdecimal() else 1
        write_durably(counted, f"{run}\n".encode())
        return run

    def path_of(self, steps_applied: int, epoch: int) -> Path:
        """The folder of a checkpoint, complete or not."""
        return self.root / f"step-{steps_applied:09d}.epoch-{epoch}"

    def steps(self) -> tuple[int, ...]:
        """Steps of the complete checkpoints, ascending; looks at names only."""
        found = {steps for steps, _, path in self._listed() if (path / MANIFEST).exists()}
        return tuple(sorted(found))

    def find(self, steps_applied: int) -> Checkpoint:
        """The complete checkpoint of so many steps; of several the first that was written, which never changes.

        Raises:
            ValueError: There is none, or its manifest cannot be read.
        """
        for steps, _, path in self._listed():
            if steps == steps_applied and (path / MANIFEST).exists():
                return self._read(path)
        raise ValueError(f"there is no complete checkpoint of step {steps_applied} in {self.root}")

    def newest_sound(self) -> Checkpoint | None:
        """The newest complete checkpoint whose bytes are what was written; reads them all. Says what it passes over."""
        for steps in reversed(self.steps()):
            with contextlib.suppress(ValueError):
                checkpoint = self.find(steps)
                self.verify(checkpoint, checkpoint.manifest.files)
                return checkpoint
        return None

    def verify(self, checkpoint: Checkpoint, files: Sequence[CheckpointFile]) -> None:
        """Read files of a checkpoint and compare them with the manifest. One that differs is not complete any more.

        Raises:
            ValueError: A file is missing, too short, or holds other bytes; the message names it.
        """
        for file in files:
            problem = _problem(checkpoint.path / file.name, file)
            if problem:
                self.mark_unsound(checkpoint.path, problem)
                raise ValueError(f"checkpoint {checkpoint.path.name}: {problem}")

    def mark_unsound(self, path: Path, problem: str) -> None:
        """Take a checkpoint out of the complete ones; its files stay, for a person to look at."""
        _log.warning("checkpoint %s is not used: %s", path, problem)
        with contextlib.suppress(OSError):
            (path / MANIFEST).rename(path / _UNSOUND)

    def complete(self, manifest: Manifest, *, keep: int) -> Path:
        """All files are there: write the manifest, then remove checkpoints beyond the newest ``keep``.

        Raises:
            OSError: The manifest cannot be written.
        """
        path = self.path_of(manifest.steps_applied, manifest.epoch)
        write_durably(path / MANIFEST, manifest_to_text(manifest).encode())
        kept = set(self.steps()[-keep:])
        for steps, _, other in self._listed():
            gone = steps not in kept if (other / MANIFEST).exists() else steps < manifest.steps_applied
            if gone and not (other / _UNSOUND).exists():
                with contextlib.suppress(OSError):
                    (other / MANIFEST).unlink(missing_ok=True)  # first: it must not look complete while it goes
                shutil.rmtree(other, ignore_errors=True)
        return path

    def clear_after(self, steps_applied: int) -> None:
        """Before a run that begins at a step: half-written checkpoints go, newer or unsound ones are set aside.

        Raises:
            OSError: The folder cannot be changed.
        """
        aside = self.root / f"aside-{uuid.uuid4().hex[:8]}"
        for steps, _, path in self._listed():
            if (path / _UNSOUND).exists() or ((path / MANIFEST).exists() and steps > steps_applied):
                aside.mkdir(exist_ok=True)
                path.rename(aside / path.name)
                _log.warning("checkpoint %s is set aside in %s", path.name, aside)
            elif not (path / MANIFEST).exists():
                shutil.rmtree(path)

    def _read(self, path: Path) -> Checkpoint:
        try:
            return Checkpoint(path=path, manifest=manifest_from_text((path / MANIFEST).read_text()))
        except (OSError, ValueError) as error:
            self.mark_unsound(path, str(error))
            raise ValueError(f"checkpoint {path.name}: {error}") from error

    def _listed(self) -> list[tuple[int, int, Path]]:
        """(steps, epoch, folder) of everything that is named like a checkpoint, ascending."""
        try:
            entries = list(self.root.iterdir())
        except OSError:
            return []
        matches = [(match, path) for path in entries if (match := _NAME.fullmatch(path.name))]
        return sorted((int(match[1]), int(match[2]), path) for match, path in matches)


def require_safetensors() -> None:
    """Fail now rather than at the first checkpoint.

    Raises:
        ValueError: The package is not installed.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise ValueError("checkpoints need safetensors: pip install 'evenkeel[elastic]'")


def sha256_of(path: Path) -> str:
    """The hash of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_durably(path: Path, content: bytes) -> None:
    """Put a file in its place in one step, after its bytes are on disk.

    Raises:
        OSError: It cannot be written.
    """
    written = path.with_name(f"{path.name}.new")
    written.write_bytes(content)
    rename_durably(written, path)


def rename_durably(written: Path, path: Path) -> None:
    """Flush a file, give it its name, and flush the folder.

    Raises:
        OSError: One of it fails.
    """
    _flush(written)
    written.rename(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _problem(path: Path, file: CheckpointFile) -> str:
    """What is wrong with a file; empty when nothing is."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes != file.num_bytes:
            return f"{file.name} has {num_bytes} bytes, {file.num_bytes} were written"
        return "" if sha256_of(path) == file.sha256 else f"the bytes of {file.name} are not those that were written"
    except OSError as error:
        return f"{file.name}: {error.strerror or error}"
