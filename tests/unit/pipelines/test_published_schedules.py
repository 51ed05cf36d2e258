import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from evenkeel.pipelines.case import Case
from evenkeel.pipelines.case_file import case_from_json
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.plan import Plan, plan_to_json
from evenkeel.pipelines.schedules.gpipe import gpipe
from evenkeel.pipelines.schedules.interleaved import interleaved
from evenkeel.pipelines.schedules.one_stage import one_stage_each
from evenkeel.pipelines.schedules.zb_v import zb_v
from tests.unit.pipelines.documents import DATA, document, documents, plan_of

SCHEDULES: dict[str, Callable[[Case, dict[str, Any]], Plan]] = {
    "all forward then all backward": lambda case, _: gpipe(case),
    "1f1b": lambda case, _: one_stage_each(case, "1f1b"),
    "interleaved 1f1b": lambda case, published: interleaved(case, published["chunks"]),
    "zb-h1": lambda case, _: one_stage_each(case, "zb-h1"),
    "zb-v": lambda case, _: zb_v(case),
}


@pytest.mark.parametrize("name", [each["name"] for each in documents("classical") if each["schedule"] in SCHEDULES])
def test_a_published_schedule_takes_what_its_formula_says(name: str) -> None:
    recorded = document("classical", name)
    published = recorded["published"]
    case = case_from_json(recorded)
    evaluation = evaluate(case, SCHEDULES[recorded["schedule"]](case, published))
    assert evaluation.makespan == published["makespan"]
    if "peak_activation" in published:
        assert max(evaluation.peak_activation) == published["peak_activation"]
    if "device_span" in published:
        assert evaluation.device_span == published["device_span"]
    if "bubble_fraction" in published:
        assert evaluation.bubble_fractions[0] == pytest.approx(published["bubble_fraction"], abs=1e-6)


@pytest.mark.parametrize("name", [each["name"] for each in documents("simpipe")])
def test_standard_schedules_of_profiled_models_agree_with_the_recorded_longest_paths(name: str) -> None:
    recorded = document("simpipe", name)
    case = case_from_json(recorded)
    plans = {
        "gpipe_equal_layers": gpipe(case),
        "1f1b_equal_layers": one_stage_each(case, "1f1b"),
        "interleaved_v2_equal_layers": interleaved(case, 2),
    }
    if "zbh1_equal_layers" in recorded["reference"]:
        plans["zbh1_equal_layers"] = one_stage_each(case, "zb-h1")
    for key, plan in plans.items():
        evaluation = evaluate(case, plan)
        assert math.ceil(evaluation.makespan) == recorded["reference"][key], key
        assert max(evaluation.peak_activation) == recorded["peak_activation"][key], key


def test_the_published_octopipe_plan_is_evaluated_to_its_published_makespan() -> None:
    recorded = json.loads((DATA / "nemotron_octopipe_plan.json").read_text(encoding="utf-8"))
    case = case_from_json(document("simpipe", recorded["case"]))
    plan = plan_of(recorded)
    evaluation = evaluate(case, plan)
    assert evaluation.makespan == 89870
    assert evaluation.busy == (86392, 84880, 84728, 84776)
    assert plan_of(plan_to_json(plan)) == plan


def test_the_best_known_plan_of_a_profiled_model_is_within_three_per_cent_of_the_simple_bound() -> None:
    recorded = json.loads((DATA / "nemotron_p8_best_known_plan.json").read_text(encoding="utf-8"))
    told = document("simpipe", recorded["case"])
    evaluation = evaluate(case_from_json(told), plan_of(recorded))
    assert evaluation.makespan == recorded["makespan"]
    assert evaluation.makespan <= 1.03 * told["lower_bound"]
