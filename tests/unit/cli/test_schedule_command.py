"""``evenkeel schedule``: a plan as a job's layout."""

import json
from pathlib import Path

from typer.testing import CliRunner

from cli.main import app
from trainer_sdk.launcher.job_file import load_job

LAYER = {"forward": 2.0, "backward_input": 2.0, "backward_weight": 2.0}
CASE = {
    "devices": 2,
    "micro_batches": 3,
    "layers": [{**LAYER, "forward": 0.1, "backward_input": 0.1}, *[LAYER] * 4, {**LAYER, "forward": 3.0}],
}


def test_a_plan_is_written_as_a_layout_that_a_job_starts_with(tmp_path: Path) -> None:
    case, written = tmp_path / "case.json", tmp_path / "layout.json"
    case.write_text(json.dumps(CASE))
    arguments = [
        "schedule",
        str(case),
        "--evaluations",
        "200",
        "--layout",
        str(written),
        "--replicas",
        "2",
        "-o",
        "json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)["plan"]
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"job_id": "gpt", "entry_point": "a:b", "layout": json.loads(written.read_text())}))
    layout = load_job(job, {})[0].layout
    assert [stage.num_blocks for stage in layout.replicas[1].stages] == plan["partition"]
    assert (layout.ranks, layout.num_micro_batches, layout.interleavable) == ((0, 1, 2, 3), 6, True)
    assert sum(len(order) for order in layout.replicas[0].orders) == sum(map(len, plan["schedule"]))


def test_a_layout_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    case.write_text(json.dumps(CASE))
    where = tmp_path / "nowhere" / "layout.json"
    result = CliRunner().invoke(app, ["schedule", str(case), "--evaluations", "20", "--layout", str(where)])
    assert "cannot write" in str(result.exception)
