"""Job descriptions: what is refused says why, what is accepted survives the way to the zygote."""

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.trainer_sdk.launcher.__main__ import main
from evenkeel.trainer_sdk.launcher.description.job_file import load_job
from evenkeel.trainer_sdk.launcher.description.job_spec import DeviceKind, JobSpec
from evenkeel.trainer_sdk.launcher.description.run_folder import FILE_NAME, held
from evenkeel.trainer_sdk.launcher.description.run_state import RankProcess, RunState, read_run_state

LAYOUT = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=2, num_micro_batches=8)
UNIFORM = {"num_blocks": 4, "tensor": 2, "pipeline": 2, "data": 2, "num_micro_batches": 8}
MODEL = {"blocks": [{"forwardFlopsPerToken": 7.0, "forwardFlopsPerSquaredLength": 0.5}] * 4}
DESCRIPTION = {"job_id": "job-1", "entry_point": "package.module:function", "layout": UNIFORM}


def spec(**changes: Any) -> JobSpec:
    values = {"job_id": "job-1", "entry_point": "a.b:c", "layout": LAYOUT, "run_dir": Path("run")}
    return JobSpec(**{**values, **changes})  # type: ignore[arg-type]


def model_of(config: dict[str, Any]) -> ModelSpec:
    block = BlockCost(forward_flops_per_token=config["flops"], forward_flops_per_squared_length=0.5)
    return ModelSpec(blocks=(block,) * 4)


def test_a_spec_survives_its_way_to_the_zygote() -> None:
    whole = spec(
        config={"seed": 3, "deep": {"list": [1, 2]}},
        device_kind=DeviceKind.CPU,
        restart_delay_seconds=0.5,
        job_token="a-token-of-this-job",
        python_path=("/somewhere",),
    )
    assert pickle.loads(pickle.dumps(whole)) == whole


def test_a_token_is_never_printed() -> None:
    assert "secret" not in repr(spec(job_token="secret-secret-secret", fleet_token="secret"))


def test_ranks_are_named_by_node_and_device() -> None:
    whole = spec(devices_per_node=4)
    assert [(whole.node_of(rank), whole.device_of(rank)) for rank in (0, 3, 4)] == [
        ("node-0", "gpu-0"),
        ("node-0", "gpu-3"),
        ("node-1", "gpu-0"),
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"job_id": "no spaces"}, "job_id"),
        ({"entry_point": "module.function"}, "entry_point"),
        ({"fleet_address": "127.0.0.1:1", "job_token": "short"}, "EVENKEEL_JOB_TOKEN"),
    ],
)
def test_an_unusable_job_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        spec(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"flops_per_second": 0.0}, "job.flops_per_second: expected a number .more than 0, .*, found 0.0"),
        ({"flops_per_second": "fast"}, "job.flops_per_second: .*, found 'fast'"),
        ({"flops_per_second": math.inf}, "job.flops_per_second: .*, found inf"),
        ({"flops_per_second": True}, "job.flops_per_second: .*, found True"),
        ({"devices_per_node": 0}, "job.devices_per_node: expected a whole number .at least 1, .*, found 0"),
        ({"devices_per_node": "4"}, "job.devices_per_node: .*, found '4'"),
        ({"num_threads": 1.5}, "job.num_threads: .*, found 1.5"),
        ({"restart_delay_seconds": -1.0}, "job.restart_delay_seconds: .* or null, found -1.0"),
        ({"restart_delay_seconds": math.nan}, "job.restart_delay_seconds: .*, found nan"),
        ({"restart_delay_seconds": 1e300}, "job.restart_delay_seconds: .*at most .*, found 1e.300"),
        ({"restart_delay_seconds": "soon"}, "job.restart_delay_seconds: .*, found 'soon'"),
        ({"finish_grace_seconds": -1.0}, "job.finish_grace_seconds: .*, found -1.0"),
        ({"finish_grace_seconds": None}, "job.finish_grace_seconds: .*, found None"),
        ({"link_bytes_per_second": math.nan}, "job.link_bytes_per_second: .*, found nan"),
        ({"name": 3}, "job.name: expected a text, found 3"),
        ({"entry_point": 3}, "job.entry_point: expected a text, found 3"),
        ({"device_kind": "tpu"}, "job.device_kind: expected one of emulated, cpu, cuda, found 'tpu'"),
        ({"logs_to_files": "no"}, "job.logs_to_files: expected true or false, found 'no'"),
        ({"python_path": [3]}, r"job.python_path\[0\]: expected a text, found 3"),
        ({"python_path": "src"}, "job.python_path: expected a list, found 'src'"),
    ],
)
def test_an_entry_of_the_wrong_kind_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**DESCRIPTION, **changes}))
    with pytest.raises(ValueError, match=said):
        load_job(path, {})


def test_entries_of_a_file_are_what_the_job_is_made_of(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    said = {"devices_per_node": 2.0, "python_path": ["src"], "device_kind": "cpu", "restart_delay_seconds": None}
    path.write_text(json.dumps({**DESCRIPTION, **said}))
    loaded, _ = load_job(path, {})
    assert repr(loaded.devices_per_node) == "2"
    assert (loaded.python_path, loaded.device_kind) == (("src",), DeviceKind.CPU)
    assert isinstance(loaded.device_kind, DeviceKind)


def test_a_job_file_is_joined_with_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**DESCRIPTION, "config": {"flops": 7.0}, "model": f"{__name__}:model_of"}))
    environment = {
        "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9092",
        "EVENKEEL_JOB_ID": "other",
        "EVENKEEL_CONTROLLER_ADVERTISE_HOST": "trainer",
    }
    loaded, model = load_job(path, environment, tmp_path / "run")
    assert loaded.layout == LAYOUT
    assert (loaded.job_id, loaded.kafka_bootstrap_servers, loaded.run_dir) == (
        "other",
        "127.0.0.1:9092",
        tmp_path / "run",
    )
    assert (loaded.controller_bind_host, loaded.controller_advertise_host) == ("", "trainer")
    assert len(loaded.job_token) >= 16
    assert model is not None
    assert model.blocks[0].forward_flops_per_token == 7.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("not json", "job.json: Expecting value"),
        ("[]", r"job: expected an object, found \[\]"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "job: missing job_id, entry_point, layout"),
        (json.dumps({**DESCRIPTION, "layout": {"data": 2}}), "job.layout: missing num_blocks, tensor, "),
        (json.dumps({**DESCRIPTION, "layout": 3}), "job.layout: expected an object, found 3"),
        (json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "mix": True}}), "mix needs the model's costs"),
        (json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "mix": 0.5}, "model": MODEL}), "max_scale is 0.5: at least"),
        (
            json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "mix": "yes"}, "model": MODEL}),
            "job.layout.mix: .* or a number .*, found 'yes'",
        ),
        (json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "schedules": "all"}}), 'schedules is "all": true, or a list'),
        (
            json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "routable": "yes"}}),
            "job.layout.routable: expected true or false, found 'yes'",
        ),
        (
            json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "routeable": True}}),
            "job.layout: unknown routeable; known here: data, ",
        ),
        (json.dumps({**DESCRIPTION, "typo": 1}), "job: unknown typo; known here: "),
        (json.dumps({**DESCRIPTION, "model": "no.such:thing"}), "No module named 'no'"),
        (json.dumps({**DESCRIPTION, "model": "os.path:basename"}), "does not take this config"),
    ],
)
def test_a_file_that_is_no_job_is_refused_with_the_reason(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load_job(path, {})


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (
            ["--run-dir", "{folder}/job.json"],
            1,
            "File exists: '{folder}/job.json'; --run-dir gives the job another folder",
        ),
        (["--progress", "nan"], 2, "argument --progress: nan: 0 or more"),
        (["--restart-delay", "-1"], 2, "argument --restart-delay: -1: 0 or more"),
    ],
)
def test_an_argument_that_cannot_be_used_is_one_line_before_anything_starts(
    arguments: list[str], status: int, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(DESCRIPTION))
    try:
        ended = main([str(path), *(each.format(folder=tmp_path) for each in arguments)])
    except SystemExit as error:
        ended = int(error.code or 0)
    assert ended == status
    assert complaint.format(folder=tmp_path) in capsys.readouterr().err


def test_a_second_launcher_in_a_folder_is_refused_before_it_touches_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = tmp_path / "job.json", tmp_path / "run"
    path.write_text(json.dumps(DESCRIPTION))
    with held(folder):
        assert main([str(path), "--run-dir", str(folder), "--fresh"]) == 2
    assert f"a job runs in {folder} already: stop it" in capsys.readouterr().err
    assert [each.name for each in folder.iterdir()] == [FILE_NAME]


def test_a_launcher_that_was_killed_keeps_nobody_out(tmp_path: Path) -> None:
    code = "import sys, pathlib; from evenkeel.trainer_sdk.launcher.description.run_folder import held\n"
    code += "with held(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="runs in"), held(tmp_path):
            pass
        other.kill()
        other.wait(10)
    with held(tmp_path):
        pass


def test_without_a_file_the_missing_argument_is_named_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    *_usage, error, example = capsys.readouterr().err.splitlines()
    assert error == "evenkeel run: error: the following arguments are required: JOB.json"
    assert example == "Example: evenkeel run examples/gpt.json"


def test_a_job_with_a_mix_weighs_documents_as_its_model_does(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "mix": 1.25}, "model": MODEL}))
    loaded, _ = load_job(path, {}, tmp_path)
    mix = loaded.layout.mix
    assert mix is not None
    assert (mix.counts, mix.token_cost, mix.square_cost, mix.max_scale) == ((4, 4), 28.0, 2.0, 1.25)


def test_a_job_says_which_schedules_a_plan_may_choose(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "schedules": True}}))
    loaded, _ = load_job(path, {}, tmp_path)
    assert (loaded.layout.schedule, loaded.layout.schedules) == ("1f1b", ("1f1b", "zb-h1"))
    assert not loaded.layout.routable


def test_a_job_says_that_plans_may_route_its_micro_batches(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**DESCRIPTION, "layout": {**UNIFORM, "routable": True}}))
    loaded, _ = load_job(path, {}, tmp_path)
    assert loaded.layout.routable


def test_the_run_state_is_read_back_and_its_absence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no job runs in"):
        read_run_state(tmp_path)
    state = RunState(job_id="job-1", supervisor_pid=7, speed_table="speeds", store_address="127.0.0.1:5")
    state.ranks.append(RankProcess(rank=0, node="node-0", device="gpu-0", pid=9, alive=True))
    state.write(tmp_path)
    assert read_run_state(tmp_path) == state
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(ValueError, match="not a job's state"):
        read_run_state(tmp_path)
