from dataclasses import replace

import pytest

from benchmarks.planning.solver.more_capacity import compared
from evenkeel.layouts.layout import uniform_layout
from evenkeel.planning.costs.risks import has_wide_stage, judged_seconds
from evenkeel.planning.costs.usual_shape import UsualShape, usual_shape
from evenkeel.planning.search.solver import solve
from tests.unit.planning.planning_cases import situation_of


@pytest.mark.parametrize("seed", [9, 30, 74, 75, 86, 100, 102, 900010, 900148, 900231, 920252])
def test_more_capacity_makes_no_plan_slower(seed):
    """States in which a rank that lives, comes back, heals or gets faster made the plan up to a third slower."""
    found = list(compared(seed))
    assert found
    assert [each for each in found if each.is_loss] == []


@pytest.mark.parametrize(("stages", "quota"), [(2, 1), (4, 2), (4, 8), (6, 5)])
@pytest.mark.parametrize("wider", [2, 1.5, 4, 8])
def test_the_full_shape_is_as_fast_as_the_same_devices_in_wider_stages(stages, quota, wider):
    usual = UsualShape(width=2, num_stages=stages, quota=quota)
    fewer = max(1.0, stages / wider)
    assert (quota + fewer - 1) * usual.slowdown(round(2 * wider)) == pytest.approx(quota + stages - 1)


def test_stages_up_to_the_usual_width_and_jobs_without_a_pipeline_are_as_fast_as_their_shards():
    assert UsualShape(width=4, num_stages=4, quota=2.0).slowdown(4) == 1.0
    assert UsualShape(width=4, num_stages=1, quota=2.0).slowdown(8) == 1.0


def test_a_plan_with_a_wider_stage_is_predicted_by_its_shards_and_judged_by_the_usual_shape():
    home = uniform_layout(num_blocks=8, tensor=1, pipeline=2, data=1, num_micro_batches=4)
    situation = situation_of(replace(home, standbys=(2, 3)), speeds={1: 0.5})
    solution = solve(situation)
    assert has_wide_stage(situation, solution.layout)
    assert solution.predicted_seconds == situation.seconds(solution.layout)
    assert judged_seconds(situation, solution.layout) > 1.04 * solution.predicted_seconds
    assert usual_shape(home) == UsualShape(width=1, num_stages=2, quota=4.0)
