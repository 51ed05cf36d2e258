"""``evenkeel run`` after everything died: the same job, another layout, and the numbers of the run that nothing hit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from evenkeel.trainer_sdk.elastic.config import config_from_json
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import CheckpointFolder
from evenkeel.trainer_sdk.elastic.copies.checkpoint_reader import read_state
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.model.optimizer import clip_scale
from evenkeel.trainer_sdk.elastic.model.reference import reference_runtime, single_layout
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.shard_state import empty_state
from evenkeel.trainer_sdk.launcher.progress.progress_board import ProgressBoard

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NUM_ITERATIONS = 30


def job(layout: dict[str, int], num_iterations: int) -> dict[str, object]:
    return {
        "job_id": "again",
        "entry_point": "evenkeel.trainer_sdk.elastic.worker:train",
        "layout": {"num_blocks": 4, "num_micro_batches": 4, **layout},
        "device_kind": "cpu",
        "config": {
            "num_iterations": num_iterations,
            "dtype": "float64",
            "model": {"num_layers": 2, "num_heads": 6, "head_dim": 4, "mlp_multiple": 2, "max_document_length": 64},
            "workload": {"num_micro_batches": 4, "token_budget": 64, "corpus_bytes": 300_000},
            "checkpoint": {"every_iterations": 5},
        },
    }


def start(tmp_path: Path, plain: dict[str, object], output: Path) -> subprocess.Popen[bytes]:
    written = tmp_path / "job.json"
    written.write_text(json.dumps(plain))
    command = [sys.executable, "-m", "evenkeel.trainer_sdk.launcher", str(written), "--run-dir", str(tmp_path / "run")]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")}
    with output.open("wb") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=settings)


def test_a_job_whose_launcher_was_killed_ends_with_the_numbers_of_the_run_that_nothing_hit(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints", "again")
    output = tmp_path / "output"
    first = start(tmp_path, job({"tensor": 2, "pipeline": 2, "data": 1}, 4000), output)
    try:
        deadline = time.monotonic() + 240.0
        while not folder.steps() or folder.steps()[-1] < 10:
            assert first.poll() is None, output.read_text()
            assert time.monotonic() < deadline, f"no checkpoint: {output.read_text()}"
            with_timeout(first, 0.05)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    reached = folder.steps()[-1]

    wanted = max(NUM_ITERATIONS, reached + 10)
    second = start(tmp_path, job({"tensor": 1, "pipeline": 1, "data": 2}, wanted - wanted % 5), output)
    try:
        assert second.wait(240.0) == 0, output.read_text()
    finally:
        second.kill()
        second.wait()

    assert "job again.2 resumes from iteration" in output.read_text()
    assert_same_as_reference(folder, folder.steps()[-1])
    note = ProgressBoard(tmp_path / "run" / "progress").newest()
    assert note is not None
    assert (note.iteration, note.epoch) == (wanted - wanted % 5 - 1, 0)
    assert note.loss > 0


def with_timeout(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the end of a process, but only so long."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def assert_same_as_reference(folder: CheckpointFolder, steps: int) -> None:
    plain = job({}, steps)["config"]
    assert isinstance(plain, dict)
    config = config_from_json(plain)
    ownership = OwnershipMap(parameter_specs(config.model), single_layout(config))
    read = empty_state(config, ownership, 0, epoch=0, steps_applied=steps)
    read_state(folder, folder.find(steps), read)
    runtime = reference_runtime(config)
    for iteration in range(steps):
        runtime.run_iteration(iteration)
        runtime.step(clip_scale(config.optimizer, runtime.sums.squared_norm_part() ** 0.5))
    for name, expected in runtime.optimizer.parameters.items():
        torch.testing.assert_close(read.parameters[name].value, expected.detach(), rtol=1e-10, atol=1e-13)
