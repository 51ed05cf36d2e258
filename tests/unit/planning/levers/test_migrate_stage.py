"""Plans with routes: for jobs whose engine runs them, where they pay, and their end."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.programs.routes import Route
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.costs.risks import judged_seconds
from evenkeel.planning.levers import REGISTRY
from evenkeel.planning.levers.migrate_stage import least_routed_seconds
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE
from tests.unit.planning.pipelined.test_routed import routed_situations
from tests.unit.planning.planning_cases import situation_of, situations

LEVER = REGISTRY["migrate_stage"]
NAME = "migrate_stage"


def job(data: int = 3, quota: int = 6, *, pipeline: int = 2, layers: int = 2, routable: bool = True) -> Layout:
    home = uniform_layout(num_blocks=layers + 2, tensor=1, pipeline=pipeline, data=data, num_micro_batches=data * quota)
    return replace(home, routable=routable)


def tight(situation: Situation) -> Situation:
    """Devices hold what the full shape needs and hardly more, so that blocks cannot move."""
    most = max(replica_peaks(situation.cost.model, situation.home.replicas[0]))
    return replace(situation, device_bytes=1.02 * most)


def without_capability(situation: Situation) -> Situation:
    bare = replace(situation.home, routable=False)
    return replace(situation, home=bare)


def test_a_slow_stage_gives_a_part_of_its_own_work_away_and_nothing_moves() -> None:
    situation = tight(situation_of(job(), speeds={4: 0.6}))
    solution, plain = solve(situation), solve(without_capability(situation))
    assert [action.lever for action in solution.actions] == [NAME]
    assert {(route.stage, route.replica) for route in solution.layout.routes} == {(0, 0), (0, 1)}
    assert solution.predicted_seconds < 0.99 * plain.predicted_seconds
    assert solution.actions[0].gain_seconds == pytest.approx(solution.idle_seconds - solution.predicted_seconds)
    assert solution.price.moved_bytes == 0
    assert "1 of replica 2 at stage 0 to 0, 1 of replica 2 at stage 0 to 1" in solution.reason


def test_routes_come_on_top_of_other_levers() -> None:
    situation = tight(situation_of(job(), speeds={2: 0.8, 4: 0.7}))
    solution, plain = solve(situation), solve(without_capability(situation))
    assert NAME in {action.lever for action in solution.actions}
    # With other quotas or without it is as fast to the last digit: which of the two is chosen hangs on rounding.
    tied = [other for other in solution.alternatives if other.predicted_seconds <= solution.idle_seconds * 0.97]
    names = {other.name for other in tied} | {" + ".join(action.lever for action in solution.actions)}
    assert f"micro_batch_quota + {NAME}" in names
    assert solution.predicted_seconds < 0.98 * plain.predicted_seconds
    assert all(action.gain_seconds > 0.0 for action in solution.actions if action.lever == NAME)


def test_a_job_whose_engine_runs_no_routes_is_offered_none() -> None:
    situation = tight(situation_of(job(routable=False), speeds={4: 0.6}))
    assert list(LEVER.propose(situation, situation.layout)) == []
    solution = solve(situation)
    assert not solution.layout.routes
    assert not any(NAME in other.name for other in solution.alternatives)


def test_where_links_are_slow_nothing_is_sent_across_replicas() -> None:
    situation = tight(situation_of(job(), speeds={4: 0.6}))
    slow = replace(situation, links=(SlowLink(ranks=(0, 1), factor=3.0),))
    assert list(LEVER.propose(situation, situation.layout))
    assert list(LEVER.propose(slow, slow.layout)) == []


def test_planning_again_under_the_routes_changes_nothing() -> None:
    situation = tight(situation_of(job(), speeds={4: 0.6}))
    first = solve(situation)
    again = solve(replace(situation, layout=first.layout))
    assert first.layout.routes
    assert not again.changes
    assert again.layout == first.layout


def test_the_routes_end_when_the_device_has_recovered_and_the_plan_says_so() -> None:
    situation = tight(situation_of(job(), speeds={4: 0.6}))
    routed = solve(situation).layout
    well = replace(situation, layout=routed, throughputs=dict.fromkeys(routed.ranks, 1.0))
    solution = solve(well)
    assert solution.changes
    assert solution.layout == situation.home
    assert [action.lever for action in solution.actions] == [NAME]
    assert solution.actions[0].gain_seconds > 0.0
    assert "every micro-batch runs all stages in its own replica again" in solution.reason


@pytest.mark.parametrize("dead", [(0,), (4,), (4, 5)])
def test_a_death_under_routes_is_planned_for_as_any_other(dead: tuple[int, ...]) -> None:
    situation = tight(situation_of(job(), speeds={4: 0.6}))
    routed = solve(situation).layout
    live = {rank: p for rank, p in situation.throughputs.items() if rank not in dead}
    solution = solve(replace(situation, layout=routed, throughputs=live, holders=frozenset(live), device_bytes=None))
    assert solution.changes
    assert not set(dead) & set(solution.layout.ranks)
    assert solution.layout.num_micro_batches == routed.num_micro_batches


@given(situations(), st.booleans())
@settings(max_examples=50)
def test_a_plan_that_may_have_routes_is_as_good_as_one_that_may_not(situation: Situation, in_force: bool) -> None:
    able = replace(situation, home=replace(situation.home, routable=True))
    plain = solve(situation)
    if in_force:
        able = replace(able, layout=plain.layout, holders=frozenset(plain.layout.ranks))
    solution = solve(able)
    assert judged_seconds(able, solution.layout) <= judged_seconds(situation, plain.layout) * (1.0 + TIE)
    assert able.excess_bytes(solution.layout) == 0.0


@given(routed_situations())
def test_no_routes_are_faster_than_the_bound_says(situation: Situation) -> None:
    bare = replace(situation.layout, routes=())
    assert least_routed_seconds(situation, bare) <= situation.seconds(situation.layout) * (1.0 + 1e-9)
    able = replace(situation, home=replace(situation.home, routable=True))
    for found in LEVER.propose(able, situation.layout):
        assert situation.seconds(found) < situation.seconds(bare)
        assert least_routed_seconds(situation, bare) <= situation.seconds(found) * (1.0 + 1e-9)


def test_only_the_first_few_of_many_routes_are_told() -> None:
    layout = job(data=3, quota=6)
    routes = [(0, 0, 1), (1, 0, 2), (2, 1, 1), (3, 1, 2), (6, 0, 0)]
    after = replace(layout, routes=tuple(Route(micro_batch=m, stage=s, replica=d) for m, s, d in routes))
    said = LEVER.describe(layout, after)
    assert said.endswith("1 of replica 0 at stage 1 to 2 and 1 more")
    assert LEVER.describe(after, after) == ""
