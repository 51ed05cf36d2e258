"""``evenkeel schedule``: a plan as a job's layout."""

import json
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.main import app
from evenkeel.pipelines.search.budget import Budget
from evenkeel.trainer_sdk.launcher.description.job_file import load_job

EXAMPLE = Path(__file__).parents[4] / "examples" / "pipeline_case.json"
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


def test_the_example_is_a_case() -> None:
    result = CliRunner().invoke(app, ["schedule", str(EXAMPLE), "--evaluations", "20", "-o", "json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["lower_bound"] <= plan["makespan"] < 1.5 * plan["lower_bound"]


def test_a_layout_that_cannot_be_written_is_told_after_the_plan(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    case.write_text(json.dumps(CASE))
    where = tmp_path / "nowhere" / "layout.json"
    result = CliRunner().invoke(app, ["schedule", str(case), "--evaluations", "20", "--layout", str(where)])
    assert "cannot write" in str(result.exception)
    assert "PEAK ACTIVATION" in result.stdout


def test_ctrl_c_ends_the_search_with_the_best_plan_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, charge = tmp_path / "case.json", Budget.charge
    case.write_text(json.dumps(CASE))

    def charge_and_press(budget: Budget, schedules: int) -> None:
        charge(budget, schedules)
        if not budget.is_stopped:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Budget, "charge", charge_and_press)
    before = signal.getsignal(signal.SIGINT)
    result = CliRunner().invoke(app, ["schedule", str(case), "-o", "json"])
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["search"]["interrupted"]) == (130, True)
    assert answer["search"]["evaluations"] < 10
    assert answer["plan"]["schedule"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_case_too_large_for_a_proof_still_gets_its_plan(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    case.write_text(json.dumps({**CASE, "layers": CASE["layers"] * 3}))
    result = CliRunner().invoke(app, ["schedule", str(case), "--evaluations", "20", "--prove", "-o", "json"])
    assert (result.exit_code, json.loads(result.stdout)["is_optimal"]) == (0, False)
    assert "not proven: 262144 assignments are too many" in result.stderr


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"layers": "abc"}', None])
def test_what_is_no_case_is_a_usage_error_of_one_line(text: bytes | None, tmp_path: Path) -> None:
    case = tmp_path if text is None else tmp_path / "case.json"
    if text is not None:
        case.write_bytes(text)
    result = CliRunner().invoke(app, ["schedule", str(case)])
    assert isinstance(result.exception, CommandError)
    assert result.exception.status is ExitStatus.USAGE
    assert "\n" not in str(result.exception)


def test_the_bound_that_is_shown_knows_that_layers_are_whole(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    times = ("forward", "backward_input", "backward_weight")
    layers = [dict.fromkeys(times, 5), dict.fromkeys(times, 3), dict.fromkeys(times, 3)]
    case.write_text(json.dumps({"devices": 2, "micro_batches": 4, "layers": layers}))
    result = CliRunner().invoke(app, ["schedule", str(case), "--evaluations", "20", "-o", "json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    # Both small layers beside each other wait for the first: 4 x 18 + 5; the even half of all work is only 66.
    assert 77 <= document["lower_bound"] <= document["makespan"]
