from dataclasses import replace
from pathlib import Path

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.run_folder import numbered
from evenkeel.trainer_sdk.launcher.description.run_state import RunState


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return JobSpec(
        job_id="gpt",
        entry_point="module:function",
        layout=uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=2, num_micro_batches=2),
        run_dir=tmp_path,
        fleet_address="127.0.0.1:7000",
        fleet_token="a-fleet-token-for-tests",
        job_token="a-token-of-this-job",
    )


def ran(spec: JobSpec) -> None:
    RunState(job_id=spec.job_id, supervisor_pid=1, speed_table="").write(spec.run_dir)


def test_runs_in_the_same_folder_are_jobs_of_their_own(spec: JobSpec) -> None:
    first, words = numbered(spec)
    assert (first, words) == (spec, "")
    ran(first)
    second, words = numbered(spec)
    assert second == replace(spec, job_id="gpt.2")
    assert words.startswith("job gpt.2 is run 2 of gpt in ")
    ran(second)
    assert numbered(spec)[0].job_id == "gpt.3"


@pytest.mark.parametrize("earlier", ["another", "gpt.two", "gpt-2.2"])
def test_another_job_that_ran_there_counts_for_nothing(spec: JobSpec, earlier: str) -> None:
    ran(replace(spec, job_id=earlier))
    assert numbered(spec) == (spec, "")


def test_a_job_that_nobody_watches_keeps_its_name(spec: JobSpec) -> None:
    ran(spec)
    alone = replace(spec, fleet_address="", fleet_token="")
    assert numbered(alone) == (alone, "")
