"""What ``evenkeel run`` does with a job whose checkpoints are there, before any rank runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_from_json, config_to_json
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import CheckpointFolder
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.resume import resumed
from evenkeel.trainer_sdk.launcher.description.run_state import RunState
from tests.unit.elastic.copies.test_checkpoints import write

TWO = uniform_layout(num_blocks=5, tensor=2, pipeline=1, data=1, num_micro_batches=3)


@pytest.fixture
def spec(small_config: TrainingConfig, tmp_path: Path) -> JobSpec:
    config = {**config_to_json(small_config), "checkpoint": {"directory": str(tmp_path / "kept")}}
    return JobSpec(
        job_id="job",
        entry_point="evenkeel.trainer_sdk.elastic.worker:train",
        layout=TWO,
        run_dir=tmp_path,
        config=config,
    )


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "kept", "job")


def test_the_first_run_begins_at_the_start_under_its_own_name(spec: JobSpec) -> None:
    first, words = resumed(spec, fresh=False)
    assert (first.job_id, first.config["resume_steps"]) == ("job", 0)
    assert "begins at iteration 0" in words


def test_a_later_run_goes_on_at_the_newest_checkpoint_under_a_name_of_its_own(
    spec: JobSpec, folder: CheckpointFolder, small_config: TrainingConfig
) -> None:
    resumed(spec, fresh=False)
    for steps in (3, 5):
        write(small_config, folder, TWO, steps)
    other = replace(spec, layout=uniform_layout(num_blocks=5, tensor=1, pipeline=3, data=1, num_micro_batches=3))
    second, words = resumed(other, fresh=False)
    assert (second.job_id, second.config["resume_steps"]) == ("job.2", 5)
    assert second.config["checkpoint"]["name"] == "job"
    assert "resumes from iteration 5" in words


def test_a_damaged_checkpoint_means_the_one_before_it(
    spec: JobSpec, folder: CheckpointFolder, small_config: TrainingConfig, caplog: pytest.LogCaptureFixture
) -> None:
    for steps in (3, 5):
        write(small_config, folder, TWO, steps)
    (folder.find(5).path / "rank-0.safetensors").write_bytes(b"")
    going, _ = resumed(spec, fresh=False)
    assert going.config["resume_steps"] == 3
    assert "has 0 bytes" in caplog.text


def test_fresh_starts_anew_and_throws_nothing_away(
    spec: JobSpec, folder: CheckpointFolder, small_config: TrainingConfig
) -> None:
    write(small_config, folder, TWO, 5)
    going, words = resumed(spec, fresh=True)
    assert going.config["resume_steps"] == 0
    assert "begins at iteration 0" in words
    assert folder.steps() == ()
    assert [path.name for path in folder.root.glob("aside-*/*")] == [folder.path_of(5, 0).name]


def test_checkpoints_of_another_training_are_refused_by_the_name_of_what_differs(
    spec: JobSpec, folder: CheckpointFolder, small_config: TrainingConfig
) -> None:
    write(small_config, folder, TWO, 5)
    other = replace(spec, config={**spec.config, "seed": 9})
    with pytest.raises(ValueError, match=r"another training: config\.seed differ.*--fresh"):
        resumed(other, fresh=False)
    assert folder.steps() == (5,), "nothing was touched"


def test_a_directory_that_cannot_be_used_is_an_error_before_anything_starts(spec: JobSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad = replace(spec, config={**spec.config, "checkpoint": {"directory": str(tmp_path / "file")}})
    with pytest.raises(ValueError, match=r"checkpoint directory .*config\.checkpoint\.directory"):
        resumed(bad, fresh=False)


@pytest.mark.parametrize("checkpoint", [{}, {"checkpoint": {}}, {"checkpoint": {"keep": 3}}])
def test_checkpoints_are_in_the_runs_folder_where_nobody_says_where(
    spec: JobSpec, small_config: TrainingConfig, tmp_path: Path, checkpoint: dict[str, dict[str, int]]
) -> None:
    unsaid = {name: value for name, value in spec.config.items() if name != "checkpoint"} | checkpoint
    first, _ = resumed(replace(spec, config=unsaid), fresh=False)
    assert first.config["checkpoint"]["directory"] == str(tmp_path / "checkpoints")
    write(small_config, CheckpointFolder(tmp_path / "checkpoints", "job"), TWO, 4)
    second, _ = resumed(replace(spec, config=unsaid), fresh=False)
    assert (second.job_id, second.config["resume_steps"]) == ("job.2", 4)


def test_runs_from_before_there_were_checkpoints_count_too(spec: JobSpec) -> None:
    RunState(job_id="job.4", supervisor_pid=1, speed_table="").write(spec.run_dir)
    assert resumed(spec, fresh=False)[0].job_id == "job.5"


def test_a_job_without_checkpoints_is_left_alone_and_cannot_be_fresh(spec: JobSpec) -> None:
    plain = replace(spec, config={**spec.config, "checkpoint": None})
    assert config_from_json(plain.config).checkpoint.directory == ""
    assert resumed(plain, fresh=False) == (plain, "")
    with pytest.raises(ValueError, match="writes no checkpoints"):
        resumed(plain, fresh=True)
