import re
from pathlib import Path

import pytest
import yaml

from evenkeel.layouts.json_schema import complaint
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.comparison import result_row, run_scenario
from evenkeel.simulator.fleet.scenario.scenario import ScenarioError, load_scenario, scenario_of
from evenkeel.simulator.fleet.scenario.schema import scenario_schema

KNOWN = list(STRATEGIES)
FOLDER = Path(__file__).parents[4] / "simulator" / "scenarios"
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


JOB = {"model": "llama2-7b", "tensor": 4, "pipeline": 2, "data": 2, "micro_batches": 4}
SHAPE = {"num_layers": 4, "hidden": 8, "heads": 2, "feed_forward": 8}


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
        ({"hours": "long"}, r"hours: expected a number \(more than 0, .*\), found 'long'"),
        ({"hours": 0}, r"hours: expected a number \(more than 0, .*\), found 0"),
        ({"duration": 3}, "unknown duration; known here: .*hours"),
        ({"job": {**JOB, "model": "gpt-9"}}, r"job.model: expected one of llama2-7b, .* or an object, found 'gpt-9'"),
        ({"job": {"model": "llama2-7b", "tensor": 4}}, "job: missing pipeline, data, micro_batches"),
        ({"faults": [{"at_hours": 1}]}, r"faults\[0\]: name devices"),
        ({"faults": [{"at_hours": 1, "devices": [99]}]}, r"faults\[0\]: .*devices 0 to 16"),
        ({"faults": [{"at_hours": 1, "devices": [1], "throughput": 2}]}, r"faults\[0\].throughput: expected a number"),
        (
            {"processes": [{"every_hours": 1, "scope": "city"}]},
            r"processes\[0\].scope: expected one of device, node, rack, found 'city'",
        ),
        ({"processes": [{"every_hours": 0}]}, r"processes\[0\].every_hours: expected a number \(more than 0"),
        ({"detector": {"slow_miss_probability": 3}}, "detector.slow_miss_probability: expected"),
        ({"strategies": ["Magic"]}, r"strategies\[0\]: expected one of .*no mitigation, .*, found 'Magic'"),
        ({"seed": 1.5}, "seed: expected a whole number"),
        ({"seed": -1}, "seed: expected a whole number"),
        ({"job": {**JOB, "tensor": 10**9}}, "job.tensor: expected a whole number"),
        ({"job": {**JOB, "tensor": 2000, "data": 2000}}, "job: 8000001 devices"),
        ({"job": {**JOB, "flops_per_second": 0}}, "job.flops_per_second: expected a number"),
        ({"job": {**JOB, "model": ["llama2-7b"]}}, "job.model: expected one of"),
        ({"job": {**JOB, "model": {**SHAPE, "heads": 0}}}, "job.model.heads: expected a whole number"),
        ({"job": {**JOB, "model": {**SHAPE, "hidden": 1}}}, "job: model: 1 hidden units cannot be cut into 2 heads"),
        ({"job": {**JOB, "model": {**SHAPE, "num_layers": 1}}}, "job: 1 blocks cannot fill 2 stages"),
        ({"faults": [{"at_hours": 1, "node": 7}]}, r"faults\[0\]: no node 7; the fleet has 0 to 2"),
        ({"faults": [{"at_hours": 1, "node": 0, "devices": [1]}]}, r"faults\[0\]: name devices.*not devices, node"),
        ({"faults": [{"at_hours": 1, "devices": [1], "throughput": 1}]}, r"faults\[0\]: .*less than 1"),
        (
            {"faults": [{"at_hours": 2, "devices": [1]}]},
            r"faults\[0\]: at_hours: 2 is not before the scenario's end, .* less than 2, or more hours",
        ),
        ({"links": [{"at_hours": 2.5, "devices": [0, 8], "factor": 2}]}, r"links\[0\]: at_hours: 2.5 is not before"),
        ({"processes": [{"every_hours": 1e-7}]}, r"processes\[0\]: every_hours makes some 2e\+07 faults"),
        ({"costs": {"bytes_per_second": 0}}, "costs.bytes_per_second: expected a number"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place_in_the_file(changes, message):
    with pytest.raises(ScenarioError, match=message):
        scenario(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        (b"a: [1", "is no YAML: while parsing"),
        (b"\xff\xfe\x00", "is no YAML"),
        (b"a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        (b"seed: 1\nhours: 1\nseed: 2\n", "the key 'seed' is there twice"),
        (b"hours: &x [1, *x]\njob: *x\n", r"hours: expected a number .*, found \[1, \[1"),
        (b"- 1", "the file: expected an object"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path, text, message):
    path = tmp_path / "scenario.yaml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ScenarioError, match=message) as raised:
        load_scenario(path, KNOWN)
    assert "\n" not in str(raised.value)


def test_a_list_that_is_endless_when_written_out_is_told_in_short(tmp_path):
    lists = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    path = tmp_path / "bomb.yaml"
    path.write_text(f"a0: &a0 [x]\n{lists}job: *a8\nhours: *a8\n")
    with pytest.raises(ScenarioError, match="unknown a0, a1") as raised:
        load_scenario(path, KNOWN)
    assert len(str(raised.value)) < 500


def test_numbers_with_an_exponent_are_numbers_and_anchors_are_followed(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(SMALL + "costs: {bytes_per_second: 1e9, device_bytes: &size 5E+10, restart_seconds: *size}\n")
    costs = load_scenario(path, KNOWN).costs
    assert (costs.transition.bytes_per_second, costs.device_bytes, costs.restart_seconds) == (1e9, 5e10, 5e10)


def places(value, path=()):
    if path:
        yield path
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(each, (*path, key))


@pytest.mark.parametrize("path", list(places(yaml.safe_load(SMALL))), ids=str)
def test_what_the_schema_allows_is_a_scenario_or_told_why_not_with_its_place(path):
    # What no schema can say: devices that the fleet has, degrees that the model has, one way to name devices.
    said = re.compile(r"(job|faults\[\d\]): ")
    for value in (None, True, -1, 0, 1, 2.0, 0.5, "1", [], [0], {}, 1e300):
        changed = inside = yaml.safe_load(SMALL)
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = value
        flaw, told = complaint(scenario_schema(KNOWN), changed), ""
        try:
            scenario_of(changed, KNOWN)
        except ScenarioError as error:
            told = str(error)
        assert told == flaw or (not flaw and said.match(told))
