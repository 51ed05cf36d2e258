from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.programs.execution import times
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.schedules import one_f_one_b
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.links import SlowLink, border_factors
from evenkeel.planning.levers.rebalance.placement import Placement
from evenkeel.planning.search.solver import solve
from evenkeel.simulator.fleet.operation.conditions import replica_seconds
from tests.unit.planning.planning_cases import one_f_one_b_makespan, situation_of

HOME = uniform_layout(num_blocks=10, tensor=2, pipeline=2, data=2, num_micro_batches=16)
TALKATIVE = CostModel(gpt(8), replace(WORKLOAD, transfer_seconds=0.01))


def with_link(*ranks, factor=20.0, home=HOME):
    return replace(situation_of(home), cost=TALKATIVE, links=(SlowLink(ranks=ranks, factor=factor),))


def test_a_pipeline_that_goes_over_a_slow_link_is_predicted_to_be_slower():
    healthy, slow = replace(situation_of(HOME), cost=TALKATIVE), with_link(1, 3)
    assert slow.seconds(HOME) > 1.2 * healthy.seconds(HOME)
    assert with_link(1, 7).seconds(HOME) == healthy.seconds(HOME)


def test_groups_of_two_replicas_change_places_so_that_nothing_goes_over_the_slow_link_and_not_a_byte_moves():
    situation = with_link(1, 3)
    solution = solve(situation)
    assert "placement" in {action.lever for action in solution.actions}
    assert solution.price.moved_bytes == 0
    assert all(max(border_factors(situation.links, r.stages)) == 1.0 for r in solution.layout.replicas)
    assert solution.predicted_seconds == pytest.approx(replace(situation, links=()).seconds(HOME))


def test_a_rank_whose_links_are_all_slow_ends_up_with_fewer_neighbours():
    home = uniform_layout(num_blocks=10, tensor=1, pipeline=3, data=1, num_micro_batches=6)
    situation = with_link(1, factor=30.0, home=home)
    solution = solve(situation)
    assert solution.predicted_seconds < 0.9 * solution.idle_seconds
    assert sum(factor > 1.0 for factor in border_factors(situation.links, solution.layout.replicas[0].stages)) <= 1


def test_a_link_that_no_pipeline_uses_changes_nothing():
    assert not solve(with_link(0, 6)).changes


def test_a_link_with_a_dead_end_is_no_link():
    situation = replace(situation_of(HOME, dead=(3,)), cost=TALKATIVE, links=(SlowLink(ranks=(1, 3), factor=20.0),))
    assert 3 not in solve(situation).layout.ranks


@pytest.mark.parametrize(("ranks", "factor"), [((), 2.0), ((1, 2, 3), 2.0), ((1, 2), 1.0), ((1, 2), float("inf"))])
def test_a_link_says_what_is_wrong_with_it(ranks, factor):
    with pytest.raises(ValueError, match="slow link"):
        SlowLink(ranks=ranks, factor=factor)


def test_a_weak_group_goes_where_it_hurts_least():
    home = uniform_layout(num_blocks=4, tensor=2, pipeline=3, data=1, num_micro_batches=2)
    situation = situation_of(home, dead=(0,), device_bytes=1e9)
    proposed = list(Placement().propose(situation, home))
    assert all(set(layout.ranks) == set(situation.throughputs) for layout in proposed)
    solution = solve(situation)
    assert "placement" in {action.lever for action in solution.actions}
    assert [stage.ranks for stage in solution.layout.replicas[0].stages].index((1,)) > 0


SECONDS = st.floats(0.01, 5.0)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), st.integers(1, 14), st.data())
@settings(max_examples=100, deadline=None)
def test_with_borders_of_their_own_pipelines_take_what_the_simulator_takes(stages, quota, data):
    count = len(stages) - 1
    borders = tuple(data.draw(st.lists(st.floats(0.0, 2.0), min_size=count, max_size=count)))
    expected = float(replica_seconds(stages, quota, borders)[0])
    assert one_f_one_b_makespan(stages, quota, borders) == pytest.approx(expected, rel=1e-9)
    if len(set(borders)) <= 1:
        programs = [one_f_one_b(s, len(stages), range(quota)) for s in range(len(stages))]
        timelines = times(programs, lambda s, i: stages[s][i.op is Op.BACKWARD], borders[0] if borders else 0.0)
        assert max(t.end_seconds for t in timelines) == pytest.approx(expected, rel=1e-9)
