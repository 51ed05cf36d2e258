import logging
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.trainer_sdk.elastic.config import CheckpointConfig, TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import MANIFEST, CheckpointFolder
from evenkeel.trainer_sdk.elastic.copies.checkpoint_manifest import (
    CheckpointFile,
    Extent,
    Manifest,
    manifest_from_text,
    manifest_to_text,
    parts_of,
)
from evenkeel.trainer_sdk.elastic.copies.checkpoint_reader import read_state
from evenkeel.trainer_sdk.elastic.copies.disk_copies import DiskCopies
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Slice
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState, empty_state

ONE = uniform_layout(num_blocks=5, tensor=1, pipeline=1, data=1, num_micro_batches=3)
TWO = uniform_layout(num_blocks=5, tensor=2, pipeline=1, data=1, num_micro_batches=3)


def marked_state(config: TrainingConfig, layout: Layout, rank: int, steps: int) -> ShardState:
    """Every element says which of its parameter it is, so that a wrong slice shows."""
    ownership = OwnershipMap(parameter_specs(config.model), layout)
    state = empty_state(config, ownership, rank, epoch=0, steps_applied=steps)
    for name, held in ownership.held_by(rank).items():
        spec = ownership.specs[name]
        whole = torch.arange(torch.Size(spec.shape).numel(), dtype=torch.float64).view(spec.shape)
        for number, tensor in enumerate(state.parameters[name]):
            tensor.copy_((whole + 0.25 * number + steps).narrow(spec.cut_axis, held.start, len(held)))
    return state


def write(config: TrainingConfig, folder: CheckpointFolder, layout: Layout, steps: int, keep: int = 2) -> None:
    """All ranks of a layout write a checkpoint."""
    config = replace(config, checkpoint=CheckpointConfig(directory=str(folder.root), every_iterations=1, keep=keep))
    writers = [DiskCopies(config, rank, folder) for rank in reversed(layout.ranks)]
    for rank, writer in zip(reversed(layout.ranks), writers, strict=True):
        writer.enter(0, OwnershipMap(parameter_specs(config.model), layout))
        writer.stepped(marked_state(config, layout, rank, steps))
    for writer in writers:
        writer.close(30.0)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_what_one_layout_wrote_another_one_reads(
    data: st.DataObject,
    any_layout: st.SearchStrategy[Layout],
    small_config: TrainingConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = CheckpointFolder(tmp_path_factory.mktemp("checkpoints"), "job")
    write(small_config, folder, data.draw(any_layout), 7)
    layout = data.draw(any_layout)
    ownership = OwnershipMap(parameter_specs(small_config.model), layout)
    for rank in layout.ranks:
        target = empty_state(small_config, ownership, rank, epoch=3, steps_applied=7)
        read_state(folder, folder.find(7), target)
        expected = marked_state(small_config, layout, rank, 7)
        for name, parameter in target.parameters.items():
            for read, wanted in zip(parameter, expected.parameters[name], strict=True):
                assert torch.equal(read, wanted), f"{name} of rank {rank}"


def test_only_the_newest_stay_and_halves_go(small_config: TrainingConfig, tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "job")
    half = folder.path_of(2, 0)
    half.mkdir(parents=True)
    (half / "rank-0.safetensors.new").write_bytes(b"half")
    for steps in (1, 3, 5):
        write(small_config, folder, TWO, steps)
    assert folder.steps() == (3, 5)
    assert not half.exists()
    assert not list(folder.root.glob("*/*.json")) or {p.name for p in folder.root.glob("*/*.json")} == {MANIFEST}


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    small_config: TrainingConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    folder = CheckpointFolder(tmp_path, "job")
    for steps in (3, 5):
        write(small_config, folder, TWO, steps)
    path = folder.find(5).path
    victim = path / (MANIFEST if damage == "manifest" else "rank-1.safetensors")
    content = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    elif damage == "changed":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        victim.write_bytes(content[: len(content) // 2])
    with caplog.at_level(logging.WARNING):
        sound = folder.newest_sound()
    assert sound is not None
    assert sound.manifest.steps_applied == 3
    assert "is not used" in caplog.text
    assert folder.steps() == (3,), "nobody tries it again"


def test_a_run_that_begins_earlier_sets_later_checkpoints_aside(small_config: TrainingConfig, tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "job")
    for steps in (3, 5):
        write(small_config, folder, TWO, steps)
    folder.clear_after(3)
    assert folder.steps() == (3,)
    assert [path.name for path in folder.root.glob("aside-*/*")] == [folder.path_of(5, 0).name]
    folder.clear_after(0)
    assert folder.steps() == ()
    assert (folder.next_run(), folder.next_run()) == (1, 2)


def test_a_folder_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"checkpoint directory .*file/job.*name a folder"):
        CheckpointFolder(tmp_path / "file", "job").require_writable()


def test_a_writer_that_fails_is_said_once_and_leaves_no_half(
    small_config: TrainingConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path, "job")
    for steps in (3, 5):
        # A folder is in the place of the file, as an error of the disk would be.
        (folder.path_of(steps, 0) / "rank-1.safetensors").mkdir(parents=True)
        write(small_config, folder, TWO, steps)
    assert folder.steps() == ()
    assert not list(folder.root.glob("step-*"))
    assert caplog.text.count("training goes on") == 2, "once for each of the two writers that this test made"


@given(cuts=st.lists(st.integers(0, 20), max_size=5), wanted=st.tuples(st.integers(0, 19), st.integers(1, 20)))
def test_the_parts_of_a_slice_are_found_in_order_or_missed_aloud(cuts: list[int], wanted: tuple[int, int]) -> None:
    borders = sorted({0, 20, *cuts})
    extents = [Extent("w", a, b) for a, b in pairwise(borders)]
    files = [
        CheckpointFile(name=f"rank-{n}.safetensors", num_bytes=1, sha256="", extents=(extent,))
        for n, extent in enumerate(extents)
    ]
    start, stop = min(wanted[0], wanted[1] - 1), wanted[1]
    found = parts_of(files, {"w": Slice(start, stop)})
    assert all(extent.start <= part.start < part.stop <= extent.stop for _, parts in found for extent, part in parts)
    covered = [index for _, parts in found for _, part in parts for index in range(part.start, part.stop)]
    assert covered == list(range(start, stop))
    lost = files.pop(0)
    if lost.extents[0].stop > start:
        with pytest.raises(ValueError, match=r"lacks w\["):
            parts_of(files, {"w": Slice(start, stop)})


@given(data=st.data())
def test_a_manifest_survives_its_text(data: st.DataObject) -> None:
    file = CheckpointFile(name="rank-0.safetensors", num_bytes=9, sha256="ab", extents=(Extent("w", 0, 4),))
    manifest = Manifest(steps_applied=12, epoch=3, training={"seed": 1}, files=(file,))
    text = manifest_to_text(manifest)
    assert manifest_from_text(text) == manifest
    with pytest.raises(ValueError, match="manifest"):
        manifest_from_text(text[: data.draw(st.integers(0, len(text) - 1))])


def test_a_manifest_of_an_older_version_is_read() -> None:
    files = '[{"name": "rank-0.safetensors", "bytes": 9, "sha256": "ab", "extents": [["w", 0, 4]]}]'
    text = '{"format": 1, "steps_applied": 12, "epoch": 3, "training": {"seed": 1}, "files": ' + files + "}"
    file = CheckpointFile(name="rank-0.safetensors", num_bytes=9, sha256="ab", extents=(Extent("w", 0, 4),))
    assert manifest_from_text(text) == Manifest(steps_applied=12, epoch=3, training={"seed": 1}, files=(file,))


def test_a_manifest_cannot_name_files_outside_its_folder() -> None:
    file = CheckpointFile(name="rank-0.safetensors", num_bytes=9, sha256="ab", extents=())
    text = manifest_to_text(Manifest(steps_applied=1, epoch=0, training={}, files=(file,)))
    with pytest.raises(ValueError, match="must lie in"):
        manifest_from_text(text.replace("rank-0", "../../etc/passwd"))


def test_an_error_that_nobody_thought_of_is_told_and_the_next_checkpoint_is_written(
    tmp_path: Path, small_config: TrainingConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path, "job")
    config = replace(small_config, checkpoint=CheckpointConfig(directory=str(tmp_path), every_iterations=1))
    writer = DiskCopies(config, 0, folder)
    writer.enter(0, OwnershipMap(parameter_specs(config.model), ONE))

    def fails(*_: object) -> None:
        raise KeyError("a mistake")

    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr("evenkeel.trainer_sdk.elastic.copies.disk_copies.sha256_of", fails)
        assert writer.stepped(marked_state(config, ONE, 0, 1))
        while "a mistake" not in caplog.text:
            time.sleep(0.01)
    assert folder.steps() == ()
    while not writer.stepped(marked_state(config, ONE, 0, 2)):  # the failed one is still being noted
        time.sleep(0.01)
    writer.close(30.0)
    assert folder.steps() == (2,)
