"""A job that runs again in the same folder: every run is a job of its own to the services."""

from dataclasses import replace

from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.run_state import read_run_state


def numbered(spec: JobSpec) -> tuple[JobSpec, str]:
    """The job under an id that no earlier run in its folder had; call it before the launcher writes there.

    Like the runs of a job with checkpoints, later ones are called ``<job>.2``, ``<job>.3``, ...: the history of a job
    ends with its run, so the fleet API would refuse the same id, and the job would run unwatched.

    Args:
        spec: The job as written down; one without a fleet address stays as it is.

    Returns:
        The job, and what to tell the person; empty for a first run.
    """
    run = next_run(spec)
    if run == 1 or not spec.fleet_address:
        return spec, ""
    job_id = f"{spec.job_id}.{run}"
    return replace(spec, job_id=job_id), f"job {job_id} is run {run} of {spec.job_id} in {spec.run_dir}"


def next_run(spec: JobSpec) -> int:
    """Which run of the job one in its folder would be; 1 for the first."""
    try:
        earlier = read_run_state(spec.run_dir).job_id
    except ValueError:
        return 1
    name, _, number = earlier.rpartition(".")
    if name == spec.job_id and number.isdecimal():
        return int(number) + 1
    return 2 if earlier == spec.job_id else 1
