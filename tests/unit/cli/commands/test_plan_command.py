"""``evenkeel plan``: states in, plans out, and errors that say where."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.main import app
from evenkeel.history.documents import layout_from_document
from evenkeel.layouts.json_schema import complaint
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.documents.question import StateError, question_from_document
from evenkeel.planning.documents.schema import STATE_SCHEMA

EXAMPLE = Path(__file__).parents[4] / "examples" / "plan_state.json"
STATE = json.loads(EXAMPLE.read_text())


def planned(tmp_path, state):
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))
    result = CliRunner().invoke(app, ["plan", str(path), "-o", "json"])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_example_is_planned_with_reasons_for_what_lost(tmp_path):
    answer = planned(tmp_path, STATE)
    assert answer["dead"] == [6]
    assert answer["decision"]["choice"] == "apply"
    layout = layout_from_document(answer["layout"])
    assert 6 not in layout.ranks
    assert layout.num_micro_batches == 16
    assert answer["alternatives"]
    assert all(each["reason"] for each in answer["alternatives"])
    assert answer["gap_to_bound"] == pytest.approx(answer["predicted_seconds"] / answer["bound_seconds"] - 1.0)


def test_a_table_names_the_bound_and_every_alternative():
    result = CliRunner().invoke(app, ["plan", str(EXAMPLE)])
    assert result.exit_code == 0
    assert "bound" in result.stdout
    assert "slower" in result.stdout


def test_a_plan_is_the_state_of_the_next_question(tmp_path):
    first = planned(tmp_path, STATE)
    again = planned(tmp_path, {**STATE, "home": STATE["layout"], "layout": first["layout"]})
    assert again["decision"]["choice"] == "keep"
    assert again["predicted_seconds"] <= first["predicted_seconds"] * 1.005


def test_a_healthy_job_is_left_alone(tmp_path):
    state = {**STATE, "throughputs": {}, "layout": {**STATE["layout"], "standbys": 0}}
    answer = planned(tmp_path, state)
    assert (answer["changes"], answer["decision"]["choice"]) == (False, "keep")


def test_a_job_that_may_have_other_schedules_is_planned_with_them(tmp_path):
    layout = {"tensor": 2, "pipeline": 4, "data": 1, "num_micro_batches": 8}
    state = {**STATE, "throughputs": {"3": 0.5}, "layout": layout, "device_bytes": 1e9}
    plain, free = planned(tmp_path, state), planned(tmp_path, {**state, "layout": {**layout, "schedules": True}})
    assert plain["layout"]["schedule"] == "1f1b"
    assert free["layout"]["schedule"] == "zb-h1"
    assert free["predicted_seconds"] < plain["predicted_seconds"]
    assert "schedule" in [action["lever"] for action in free["actions"]]
    assert layout_from_document(free["layout"]).schedules == ("1f1b", "zb-h1")


def test_a_job_whose_engine_runs_routes_is_planned_with_them(tmp_path):
    layout = {"tensor": 1, "pipeline": 3, "data": 3, "num_micro_batches": 18}
    block = {"forward_flops_per_token": 1e5, "forward_flops_per_squared_length": 0, "parameter_bytes": 1_000_000}
    state = {"model": {"blocks": [{**block, "count": 3}]}, "throughputs": {"1": 0.4}, "layout": layout}
    plain, free = planned(tmp_path, state), planned(tmp_path, {**state, "layout": {**layout, "routable": True}})
    assert "routes" not in plain["layout"]
    assert free["predicted_seconds"] < 0.96 * plain["predicted_seconds"]
    assert "migrate_stage" in [action["lever"] for action in free["actions"]]
    (route, *_) = layout_from_document(free["layout"]).routes
    (tmp_path / "state.json").write_text(json.dumps({**state, "layout": {**layout, "routable": True}}))
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "state.json")]).output
    assert f"micro-batch {route.micro_batch}, stage {route.stage}: on replica {route.replica}" in shown


def test_no_plan_says_what_to_do_and_has_its_own_exit_status(tmp_path):
    with pytest.raises(CommandError, match="start replacements") as raised:
        planned(tmp_path, {**STATE, "throughputs": {str(rank): 0 for rank in range(9)}})
    assert raised.value.status is ExitStatus.FAILURE


BLOCK = {"forward_flops_per_token": 0, "forward_flops_per_squared_length": 0}
WORKLOAD = {"seconds_per_flop": 1e-9, "tokens": 10, "sum_of_squares": 50}
RAN = {"wall_seconds": 1.0, "tokens": [8, 12], "sums_of_squares": [40, 60]}
ONE = {"tokens": [8], "sums_of_squares": [40]}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"typo": 1}, "the file: unknown typo"),
        ({"layout": None}, "layout: expected an object, found None"),
        ({"layout": {"tensor": 2}}, "layout: missing pipeline, data, num_micro_batches"),
        ({"layout": {**STATE["layout"], "num_blocks": 3}}, "layout: it has 3 blocks, the model 14"),
        ({"layout": {**STATE["layout"], "tensor": 0}}, r"layout\.tensor: expected a whole number \(at least 1"),
        (
            {"layout": {**STATE["layout"], "mix": 0.5}},
            r"layout\.mix: expected true or false or a number \(at least 1, at most 1000\), found 0\.5",
        ),
        (
            {"layout": {**STATE["layout"], "schedule": "zig-zag"}},
            "layout.schedule: expected one of 1f1b, zb-h1, found 'zig-zag'",
        ),
        (
            {"layout": {**STATE["layout"], "schedules": ["zig-zag"]}},
            r"layout\.schedules\[0\]: expected one of 1f1b, zb-h1, found 'zig-zag'",
        ),
        ({"layout": {**STATE["layout"], "routable": 1}}, "layout.routable: expected true or false, found 1"),
        ({"layout": {"replicas": []}}, "layout: missing num_blocks"),
        ({"throughputs": {"77": 1}}, "throughputs: no rank '77'; the layouts have 0 to 8"),
        ({"throughputs": {"3": -1}}, r"throughputs\.3: expected a number \(at least 0, at most 16\), found -1"),
        ({"throughputs": {"3": "slow"}}, "throughputs.3: expected a number .*, found 'slow'"),
        ({"workload": {"tokens": 1.0}}, "workload: .*seconds_per_flop"),
        ({"workload": {"speed": 1.0}}, "workload: missing seconds_per_flop.*; unknown speed"),
        ({"workload": {**WORKLOAD, "recent": [RAN]}}, r"workload\.recent: 2 micro-batches, the layout has"),
        ({"workload": {**WORKLOAD, "recent": 5}}, r"workload\.recent: expected a list"),
        ({"workload": {**WORKLOAD, "recent": [{}]}}, r"workload\.recent\[0\]: .*wall_seconds"),
        ({"workload": {**WORKLOAD, "recent": [{**RAN, "tokens": [1]}]}}, r"recent\[0\]: .*1 numbers of tokens"),
        ({"workload": {**WORKLOAD, "recent": [{**RAN, "tokens": [1.5, 2]}]}}, r"tokens\[0\]"),
        ({"workload": {**WORKLOAD, "recent": [RAN, {**RAN, **ONE}]}}, r"workload: recent iterations of \[1, 2\]"),
        ({"device_bytes": -5}, r"device_bytes: expected a number \(more than 0, at most .*\), found -5"),
        ({"model": {"blocks": []}}, "model.blocks: expected a list"),
        ({"model": {"blocks": [{"count": 2}]}}, r"model.blocks\[0\]: .*forward_flops_per_token"),
        ({"model": {"blocks": [{"width": 2}]}}, r"model.blocks\[0\]: missing forward_flops_per_token.*unknown width"),
        ({"flips": 1.5}, "flips: expected a whole number"),
        ({"correction": 0}, "correction: expected a number"),
        ({"transition": {"bytes_per_second": 0}}, "transition.bytes_per_second: expected a number"),
        ({"layout": {**STATE["layout"], "tensor": 10**9}}, "layout.tensor: expected a whole number"),
        ({"layout": {**STATE["layout"], "tensor": 9999, "data": 9999}}, r"layout: \d+ ranks and standbys: at most"),
        ({"layout": {**STATE["layout"], "num_micro_batches": 1.5}}, "layout.num_micro_batches: expected a whole"),
        ({"layout": {**STATE["layout"], "schedule": ["1f1b"]}}, "layout.schedule: expected one of"),
        (
            {"layout": {"num_blocks": 14, "replicas": [{"num_micro_batches": 1, "stages": [5]}]}},
            r"stages\[0\]: expected",
        ),
        ({"throughputs": {"03": 1}}, "throughputs: no rank '03'"),
        ({"model": {"blocks": [{**BLOCK, "count": 14}]}}, "none of them computes anything"),
        ({"model": {"blocks": [{**BLOCK, "count": 9999}] * 2}}, "more than 10000 blocks"),
    ],
)
def test_a_state_that_cannot_be_used_says_where_and_why(change, complaint):
    with pytest.raises(StateError, match=complaint):
        question_from_document({**STATE, **change})


def test_what_a_state_says_of_ranks_and_links_is_asked():
    more = {
        "vacant": [1],
        "domains": {"a": [0, 1], "b": [2]},
        "links": [{"ranks": [0, 2], "factor": 3}],
        "correction": 1.5,
        "device_bytes": 1e12,
        "transition": {"group_seconds": 2},
    }
    asked, plain = question_from_document({**STATE, **more}), question_from_document(STATE)
    assert asked.holders == plain.holders - {1}
    assert asked.domains == {0: "a", 1: "a", 2: "b"}
    assert asked.links == (SlowLink(ranks=(0, 2), factor=3),)
    assert (asked.cost.correction, asked.device_bytes, asked.transition.group_seconds) == (1.5, 1e12, 2)
    assert asked.home == plain.layout


def test_a_number_is_whole_however_it_is_written():
    written = json.loads(json.dumps(STATE).replace('"tensor": 2', '"tensor": 2.0'))
    assert question_from_document(written).layout == question_from_document(STATE).layout


@pytest.mark.parametrize(
    "text", [None, b"{", b"\xff\xfe", b"[" * 100_000, b'{"model": NaN}', b'{"flips": 1, "flips": 2}']
)
def test_a_file_that_is_not_there_or_no_json_is_a_usage_error_of_one_line(tmp_path, text):
    path = tmp_path / "state.json"
    if text:
        path.write_bytes(text)
    result = CliRunner().invoke(app, ["plan", str(path)])
    assert isinstance(result.exception, CommandError)
    assert result.exception.status is ExitStatus.USAGE
    assert "\n" not in str(result.exception)


def test_the_schema_that_the_command_prints_is_that_of_its_own_answers(tmp_path):
    printed = json.loads(CliRunner().invoke(app, ["plan", "--schema"]).stdout)
    assert printed == STATE_SCHEMA
    answer = planned(tmp_path, {**STATE, "layout": {**STATE["layout"], "schedules": True, "interleavable": True}})
    assert complaint(printed, {**STATE, "layout": answer["layout"]}) == ""
    assert complaint(printed, {**STATE, "layout": {**answer["layout"], "ranks": 3}}).startswith("layout: unknown ranks")
