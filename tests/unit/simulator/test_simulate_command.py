import json

import pytest
import yaml
from typer.testing import CliRunner

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.main import app
from evenkeel.layouts.json_schema import complaint

SCENARIO = """
name: one death
hours: 2
job: {model: llama2-7b, tensor: 4, pipeline: 2, data: 2, micro_batches: 4}
faults: [{at_hours: 1, devices: [3]}]
strategies: [no mitigation, Evenkeel]
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    return str(file)


def test_json_has_every_system_of_the_scenario_with_its_numbers(path):
    result = CliRunner().invoke(app, ["simulate", path, "-o", "json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [row["strategy"] for row in found["results"]] == ["no mitigation", "Evenkeel"]
    nothing, ours = found["results"]
    assert nothing["throughput"] == pytest.approx(0.5)
    assert 0.9 < ours["throughput"] < 1.0
    assert "segments" not in ours


def test_only_the_systems_that_were_asked_for_run_and_the_course_of_the_run_can_be_had(path):
    result = CliRunner().invoke(app, ["simulate", path, "-s", "ResiHP", "-o", "json", "--segments"])
    (row,) = json.loads(result.stdout)["results"]
    assert row["strategy"] == "ResiHP"
    assert row["segments"][0]["rate"] == 1.0


def test_a_table_names_the_systems(path):
    result = CliRunner().invoke(app, ["simulate", path])
    assert result.exit_code == 0
    assert "no mitigation" in result.stdout
    assert "% OF BOUND" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["-s", "Magic"], "unknown system Magic"), (["--seed", "1"], "the file: missing hours, job")],
)
def test_what_cannot_be_simulated_is_a_usage_error(path, tmp_path, arguments, message):
    if "--seed" in arguments:
        path = str(tmp_path / "short.yaml")
        (tmp_path / "short.yaml").write_text("name: nothing in it\n")
    result = CliRunner().invoke(app, ["simulate", path, *arguments])
    assert isinstance(result.exception, CommandError)
    assert message in str(result.exception)
    assert result.exception.status is ExitStatus.USAGE


def test_the_schema_that_the_command_prints_has_the_systems_that_may_compete():
    printed = json.loads(CliRunner().invoke(app, ["simulate", "--schema"]).stdout)
    assert complaint(printed, yaml.safe_load(SCENARIO)) == ""
    assert "Evenkeel" in printed["properties"]["strategies"]["items"]["enum"]


def test_a_picture_that_cannot_be_drawn_is_told_after_the_results(path, tmp_path):
    result = CliRunner().invoke(app, ["simulate", path, "--picture", str(tmp_path / "nowhere" / "runs.png")])
    assert "cannot draw" in str(result.exception)
    assert "% OF BOUND" in result.stdout
