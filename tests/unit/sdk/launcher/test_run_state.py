import resource
from pathlib import Path

import pytest

from evenkeel.trainer_sdk.launcher.description.run_state import FILE_NAME, RankProcess, RunState, read_run_state


def state(job_id: str) -> RunState:
    return RunState(
        job_id=job_id, supervisor_pid=1, speed_table="", ranks=[RankProcess(rank=0, node="node-0", device="gpu-0")]
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    state("mine").write(tmp_path)
    assert read_run_state(tmp_path) == state("mine")


def test_a_state_that_does_not_fit_onto_the_disk_leaves_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    state("before").write(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            state("after").write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert read_run_state(tmp_path) == state("before")
