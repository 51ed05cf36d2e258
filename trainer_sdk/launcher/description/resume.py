"""Where a run of an elastic job begins: at the newest sound checkpoint, under whatever layout its file says now."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from evenkeel.trainer_sdk.elastic.config import config_from_json
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import Checkpoint, CheckpointFolder, require_safetensors
from evenkeel.trainer_sdk.elastic.copies.checkpoint_manifest import training_identity
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.run_folder import next_run, numbered

_FOLDER = "checkpoints"
_ELASTIC = "evenkeel.trainer_sdk.elastic.worker:train"


def resumed(spec: JobSpec, *, fresh: bool) -> tuple[JobSpec, str]:
    """A job that goes on where its checkpoints end. Before any rank runs: it tidies up the job's folder.

    Checkpoints are in the run's folder unless ``config.checkpoint`` names another; null is none. Later runs get an id
    of their own (``<job>.2``, ``<job>.3``, ...), because the history of a job ends with its run.

    Args:
        spec: The job as written down.
        fresh: Start anew: checkpoints that are there are set aside.

    Returns:
        The job with its starting point, and what to tell the person; without checkpoints as :func:`numbered`.

    Raises:
        ValueError: The directory cannot be used, or its checkpoints are of another training.
    """
    if spec.entry_point != _ELASTIC or spec.config.get("checkpoint", {}) is None:
        if fresh:
            raise ValueError("--fresh: the job writes no checkpoints, so there are none")
        return numbered(spec)
    config = config_from_json(spec.config)
    require_safetensors()
    directory = Path(config.checkpoint.directory or spec.run_dir / _FOLDER).expanduser().absolute()
    folder = CheckpointFolder(directory, spec.job_id)
    folder.require_writable()
    try:
        found = None if fresh else folder.newest_sound()
        if found is not None:
            _require_same_training(found, training_identity(config))
        steps = 0 if found is None else found.manifest.steps_applied
        folder.clear_after(steps)
        run = max(folder.next_run(), next_run(spec))
    except OSError as error:
        raise ValueError(f"checkpoint directory {folder.root}: {error.strerror or error}") from error
    checkpoint = {**spec.config.get("checkpoint", {}), "directory": str(directory), "name": spec.job_id}
    job_id = spec.job_id if run == 1 else f"{spec.job_id}.{run}"
    going = replace(spec, job_id=job_id, config={**spec.config, "checkpoint": checkpoint, "resume_steps": steps})
    return going, _words(job_id, found, folder, config.num_iterations)


def _words(job_id: str, found: Checkpoint | None, folder: CheckpointFolder, num_iterations: int) -> str:
    if found is None:
        return f"job {job_id} begins at iteration 0: no checkpoint in {folder.root}"
    steps = found.manifest.steps_applied
    if steps >= num_iterations:
        return f"job {job_id} has done its {num_iterations} iterations ({found.path}); --fresh starts anew"
    return f"job {job_id} resumes from iteration {steps} ({found.path}); --fresh starts anew"


def _require_same_training(found: Checkpoint, wanted: dict[str, Any]) -> None:
    written = found.manifest.training
    differing = sorted(name for name in wanted if written.get(name) != wanted[name])
    if differing:
        raise ValueError(
            f"checkpoint {found.path} is of another training: config.{', config.'.join(differing)} differ; restore "
            "them, name another checkpoint.directory, or start anew with --fresh"
        )
