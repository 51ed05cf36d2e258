"""A job's folder: one launcher at a time, and every run in it is a job of its own to the services.

A second launcher would share the first one's speed table, its state and its checkpoints.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.run_state import read_run_state

FILE_NAME = "launcher.lock"


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Keeps other launchers out of a folder, which is made if need be; a launcher that was killed keeps nobody out.

    Raises:
        ValueError: Another launcher runs there.
        OSError: The folder cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / FILE_NAME).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"a job runs in {run_dir} already: stop it (Ctrl-C), or give this one another folder: "
                "run_dir in its file, or --run-dir of evenkeel run"
            ) from None
        yield


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
