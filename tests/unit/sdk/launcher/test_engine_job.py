"""A job file on several hosts: which part of it is a host's, after whatever ran there, and what is refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from evenkeel.trainer_sdk.launcher.agent.engine_job import load_engine_job
from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.run_state import RunState, first_state

LAYOUT = {"num_blocks": 4, "tensor": 2, "pipeline": 1, "data": 2, "num_micro_batches": 4}
STORES = ("a:1", "b:1")
FLEET = {"EVENKEEL_FLEET_ADDRESS": "fleet:1", "EVENKEEL_JOB_TOKEN": "a-token-of-this-job"}


def loaded(
    folder: Path, *, host: int = 1, per_host: int = 2, settings: dict[str, str] = FLEET, config: Any = None
) -> JobSpec:
    path = folder / "job.json"
    job = {"job_id": "job", "entry_point": "a.b:c", "layout": LAYOUT, "run_dir": str(folder), "config": config or {}}
    path.write_text(json.dumps(job))
    hosts = ScriptJob(
        job_id="job", script=str(path), num_hosts=2, host=host, num_ranks=per_host, stores=STORES, replica_size=1
    )
    return load_engine_job(hosts, settings)[0]


def test_a_host_runs_the_ranks_of_its_node_in_a_folder_of_its_own(tmp_path: Path) -> None:
    first, second = loaded(tmp_path, host=0), loaded(tmp_path, host=1)
    assert (first.own_ranks, second.own_ranks) == ((0, 1), (2, 3))
    assert first.run_dir != second.run_dir
    assert [second.node_of(rank) for rank in (0, 2)] == ["node-0", "node-1"]
    assert pickle.loads(pickle.dumps(second)) == second


def test_whoever_starts_again_on_a_host_goes_on_with_the_next_processes_of_the_same_job(tmp_path: Path) -> None:
    spec = loaded(tmp_path)
    spec.run_dir.mkdir()
    before = first_state(spec).ranks
    before[1].incarnation = 4
    RunState(job_id="job", supervisor_pid=1, speed_table="", ranks=before).write(spec.run_dir)
    assert [(each.rank, each.incarnation) for each in first_state(spec).ranks] == [(2, 1), (3, 5)]
    RunState(job_id="another", supervisor_pid=1, speed_table="", ranks=before).write(spec.run_dir)
    assert [each.incarnation for each in first_state(spec).ranks] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"per_host": 3}, "has 4 ranks: give --nnodes and --nproc-per-node whose product is that, not 2 and 3"),
        ({"settings": {"EVENKEEL_FLEET_ADDRESS": "fleet:1"}}, "EVENKEEL_JOB_TOKEN is not set: give all hosts the same"),
        ({"config": {"checkpoint": {"directory": "/shared"}}}, "config.checkpoint: hosts write none yet; leave it out"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        loaded(tmp_path, **changes)
