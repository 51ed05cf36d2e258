"""A job file instead of a script: what this host runs of an engine's job, whose ranks are reshaped one by one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from evenkeel.layouts.model import ModelSpec
from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from evenkeel.trainer_sdk.launcher.description.job_file import load_job
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec


def is_job_file(job: ScriptJob) -> bool:
    """Whether what is to be run describes a job."""
    return not job.is_module and job.script.endswith(".json")


def load_engine_job(job: ScriptJob, environment: Mapping[str, str]) -> tuple[JobSpec, ModelSpec | None]:
    """This host's part of the job in a file, and its model's costs if the file has them.

    Ranks are started again at once unless the file says otherwise.

    Args:
        job: The hosts, and the file as its script.
        environment: Usually ``os.environ``.

    Raises:
        ValueError: The file is no job, or the numbers do not fit it; one line that says what to do.
    """
    spec, model = load_job(Path(job.script), environment)
    if spec.world_size != job.num_hosts * job.num_ranks:
        raise ValueError(
            f"job file {job.script} has {spec.world_size} ranks: give --nnodes and --nproc-per-node whose product is "
            f"that, not {job.num_hosts} and {job.num_ranks}"
        )
    if spec.fleet_address and not environment.get("EVENKEEL_JOB_TOKEN"):
        raise ValueError("EVENKEEL_JOB_TOKEN is not set: give all hosts the same one, of at least 16 characters")
    if spec.config.get("checkpoint"):
        raise ValueError(f"job file {job.script}: config.checkpoint: hosts write none yet; leave it out")
    return replace(
        spec,
        run_dir=spec.run_dir / f"host-{job.host}",
        devices_per_node=job.num_ranks,
        host=job.host,
        stores=job.stores,
        restart_delay_seconds=spec.restart_delay_seconds or 0.0,
    ), model
