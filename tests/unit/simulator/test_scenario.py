from pathlib import Path

import pytest
import yaml

from simulator.baselines import STRATEGIES
from simulator.fleet.comparison import result_row, run_scenario
from simulator.fleet.scenario import ScenarioError, load_scenario, scenario_of

KNOWN = list(STRATEGIES)
FOLDER = Path(__file__).parents[3] / "simulator" / "scenarios"
SMALL = """
name: small
seed: 4
hours: 2
job: {model: llama2-7b, tensor: 4, pipeline: 2, data: 2, micro_batches: 4}
fleet: {spares: 1}
faults:
  - {at_hours: 0.5, devices: [3], throughput: 0.5, hours: 1}
  - {at_hours: 1, node: 1}
processes:
  - {every_hours: 1, repair_hours: 1}
strategies: [Evenkeel]
"""


def scenario(**changes):
    return scenario_of({**yaml.safe_load(SMALL), **changes}, KNOWN)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_scenarios_that_come_along_can_be_read(path):
    assert load_scenario(path, KNOWN).duration_seconds > 0


def test_a_scenario_says_what_it_says():
    found = scenario()
    assert found.home.standbys == (16,)
    assert found.faults[0].duration_seconds == 3600.0
    assert found.faults[1].devices == tuple(range(8, 16))
    assert found.strategies == ("Evenkeel",)


def test_the_same_scenario_twice_gives_the_same_rows():
    strategies = [STRATEGIES["Evenkeel"]]
    rows = [result_row(run_scenario(scenario(), strategies)[0], segments=True) for _ in range(2)]
    for row in rows:
        row.pop("plan_seconds_max")
    assert rows[0] == rows[1]
    assert rows[0]["segments"]


def test_progress_is_told_up_to_the_end():
    told = []
    run_scenario(scenario(), [STRATEGIES["Evenkeel"]], on_progress=lambda name, done: told.append((name, done)))
    assert told == sorted(told)
    assert told[-1] == ("Evenkeel", 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hours": "long"}, "hours: expected a number, found 'long'"),
        ({"hours": 0}, "hours: 0 is too short"),
        ({"duration": 3}, "unknown duration; known here: .*hours"),
        ({"job": {"model": "gpt-9"}}, r"job.model: 'gpt-9' is none of llama2-7b"),
        ({"job": {"model": "llama2-7b", "tensor": 4}}, "job.data: missing"),
        ({"faults": [{"at_hours": 1}]}, r"faults\[0\]: name devices"),
        ({"faults": [{"at_hours": 1, "devices": [99]}]}, r"faults\[0\]: .*devices 0 to 16"),
        ({"faults": [{"at_hours": 1, "devices": [1], "throughput": 2}]}, r"faults\[0\]: .*throughput 2"),
        ({"processes": [{"every_hours": 1, "scope": "city"}]}, r"processes\[0\].scope: 'city' is none of device"),
        ({"processes": [{"every_hours": 0}]}, r"processes\[0\]: every_seconds"),
        ({"detector": {"slow_miss_probability": 3}}, "detector: slow_miss_probability"),
        ({"strategies": ["Magic"]}, "unknown Magic; known: no mitigation"),
        ({"seed": 1.5}, "seed: expected a whole number"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place_in_the_file(changes, message):
    with pytest.raises(ScenarioError, match=message):
        scenario(**changes)


def test_a_file_that_is_not_there_and_one_that_is_no_yaml_are_told_apart(tmp_path):
    with pytest.raises(ScenarioError, match="cannot read"):
        load_scenario(tmp_path / "none.yaml", KNOWN)
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(ScenarioError, match="is no YAML"):
        load_scenario(tmp_path / "bad.yaml", KNOWN)
