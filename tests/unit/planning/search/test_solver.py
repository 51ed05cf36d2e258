import math
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from benchmarks.planning.solver.cases import case_of
from benchmarks.planning.solver.small_jobs import WORKLOAD
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.costs.risks import RISK_MARGIN, judged_seconds
from evenkeel.planning.levers import REGISTRY, Asked, asked_at
from evenkeel.planning.levers.balance.layer_split import fastest_stages
from evenkeel.planning.levers.balance.tuning import Tuner
from evenkeel.planning.levers.rebalance.grid import even_stages
from evenkeel.planning.repair import ways_to_repair
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE, NoPlanError
from tests.unit.planning.planning_cases import situation_of, situations

DEMO = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=16)


def solved(situation):
    try:
        return solve(situation)
    except NoPlanError:
        assume(False)
        raise


def assert_whole(situation, layout):
    """It covers every block, keeps every micro-batch and uses live ranks once."""
    assert layout.num_blocks == situation.home.num_blocks
    assert layout.num_micro_batches == situation.home.num_micro_batches
    placed = (*layout.ranks, *layout.standbys)
    assert len(set(placed)) == len(placed)
    assert set(placed) == set(situation.throughputs), "who is left out would stay in the old epoch"
    assert situation.excess_bytes(layout) == 0.0
    assert layout.mix is None or layout.mix.num_micro_batches == layout.num_micro_batches
    assert (layout.mix is None) == (situation.home.mix is None)
    for replica in layout.replicas:
        assert [b for s in replica.stages for b in range(s.first_block, s.stop_block)] == list(range(layout.num_blocks))


@given(situations())
@settings(max_examples=100, deadline=None)
def test_a_plan_is_whole_and_never_slower_than_any_lever_alone_nor_than_doing_nothing(situation):
    plan = solved(situation).layout
    assert_whole(situation, plan)
    judged = judged_seconds(situation, plan)
    bases = [*ways_to_repair(situation.layout, situation.throughputs)]
    alone = [layout for lever in REGISTRY.values() for base in bases for layout in lever.propose(situation, base)]
    tuning = [lever.name for lever in asked_at(Asked.TUNING)]
    alone += [Tuner(situation).tuned(base, (name,)) for name in tuning for base in bases]
    for layout in (*bases, *alone):
        if set(layout.ranks) <= set(situation.throughputs) and not situation.excess_bytes(layout):
            assert judged <= judged_seconds(situation, layout) * (1.0 + TIE) + 1e-12


CLIMBED = replace(
    uniform_layout(num_blocks=3, tensor=2, pipeline=2, data=2, num_micro_batches=5), schedules=("1f1b", "zb-h1")
)
"""A job whose best plan is climbed to under the one schedule and faster under the other."""


@given(situations())
@example(situation_of(CLIMBED))
@settings(max_examples=80, deadline=None)
def test_planning_again_from_the_plan_changes_nothing_that_matters(situation):
    first = solved(situation)
    again = solve(
        replace(
            situation, layout=first.layout, holders=frozenset(first.layout.ranks) & frozenset(situation.throughputs)
        )
    )
    for plan in (first, again):
        assert_whole(situation, plan.layout)
    assert again.predicted_seconds <= first.predicted_seconds * (1.0 + 1e-9)
    judged = judged_seconds(situation, first.layout)
    assert judged_seconds(situation, again.layout) >= judged * (1.0 - TIE), "what planning twice finds is found at once"


@given(situations(), st.floats(0.2, 1.2))
@settings(max_examples=30, deadline=None)
def test_capacity_that_joins_never_makes_the_plan_slower(situation, speed):
    dead = set(situation.home.ranks) - set(situation.throughputs)
    newcomer = min(dead, default=max(situation.home.ranks) + 1)
    first = solved(situation)
    settled = replace(situation, layout=first.layout, holders=frozenset(first.layout.ranks))
    joined = replace(settled, throughputs={**situation.throughputs, newcomer: speed})
    assume(len(set(joined.throughputs) - set(first.layout.ranks)) <= 4)  # all of their parts are planned with
    before, after = solve(settled), solve(joined)
    # When nobody is ill any more the full shape is preferred, unless something else is faster by a margin.
    margin = RISK_MARGIN if joined.all_is_well and not settled.all_is_well else 0.0
    assert judged_seconds(joined, after.layout) <= judged_seconds(settled, before.layout) * (1.0 + margin) * (1.0 + TIE)


def test_a_healthy_job_is_left_alone():
    solution = solve(situation_of(DEMO))
    assert not solution.changes
    assert solution.layout is DEMO
    assert solution.price.moved_bytes == 0


@pytest.mark.parametrize("rank", range(8))
def test_one_device_at_half_speed_costs_little_more_than_its_share(rank):
    solution = solve(situation_of(DEMO, speeds={rank: 0.5}))
    assert solution.bound_seconds / solution.predicted_seconds > 0.94
    assert solution.predicted_seconds < 0.7 * solution.idle_seconds


@pytest.mark.parametrize("rank", range(8))
def test_one_dead_device_leaves_its_stage_to_its_peer_and_the_job_near_the_bound(rank):
    solution = solve(situation_of(DEMO, dead=(rank,)))
    assert rank not in solution.layout.ranks
    assert len(solution.layout.ranks) == 7
    assert solution.bound_seconds / solution.predicted_seconds > 0.92


def test_a_dead_stage_is_merged_or_its_replica_dropped_and_everyone_left_is_put_to_work():
    solution = solve(situation_of(DEMO, dead=(2, 3)))
    assert len(solution.layout.ranks) == 6
    assert solution.bound_seconds / solution.predicted_seconds > 0.95


def test_a_rank_that_comes_back_brings_the_full_shape_back():
    without = solve(situation_of(DEMO, dead=(3,))).layout
    back = solve(situation_of(DEMO, layout=without))
    assert back.changes
    assert back.layout.replicas == DEMO.replicas
    assert {action.lever for action in back.actions} == {"rejoin"}


def test_a_device_that_recovers_gets_its_full_share_back():
    slow = solve(situation_of(DEMO, speeds={3: 0.5})).layout
    back = solve(situation_of(DEMO, layout=slow))
    assert back.layout.replicas == DEMO.replicas


def test_replicas_far_from_the_failure_keep_their_shape():
    home = uniform_layout(num_blocks=10, tensor=2, pipeline=2, data=4, num_micro_batches=32)
    layout = solve(situation_of(home, speeds={0: 0.5})).layout
    for old, new in list(zip(home.replicas, layout.replicas, strict=True))[2:]:
        assert old.stages == new.stages


def test_nobody_left_is_an_error_that_says_what_to_do():
    with pytest.raises(NoPlanError, match="start replacements"):
        solve(situation_of(DEMO, dead=DEMO.ranks))


def test_the_answer_says_what_it_does_what_it_beat_and_why():
    solution = solve(situation_of(DEMO, speeds={3: 0.5}))
    tuning = {lever.name for lever in asked_at(Asked.SCHEDULE, Asked.TUNING, Asked.POLISH)}
    assert {action.lever for action in solution.actions} <= tuning
    assert all(action.description for action in solution.actions)
    assert max(action.gain_seconds for action in solution.actions) > 0
    names = [alternative.name for alternative in solution.alternatives]
    assert "do nothing" in names
    assert "rank 3 at 0.50" in solution.reason
    assert all(a.predicted_seconds >= solution.predicted_seconds * (1 - TIE) for a in solution.alternatives)


BIG = uniform_layout(num_blocks=22, tensor=2, pipeline=5, data=4, num_micro_batches=32)


def test_deaths_in_several_replicas_are_gathered_in_one_of_them_when_memory_allows():
    situation = situation_of(BIG, dead=(0, 14, 26), device_bytes=1e9)
    solution = solve(situation)
    broken = [d for d, replica in enumerate(solution.layout.replicas) if len(replica.ranks) < 10]
    assert len(broken) == 1
    assert "move_ranks" in {action.lever for action in solution.actions}
    without = min(judged_seconds(situation, each) for each in ways_to_repair(situation.layout, situation.throughputs))
    assert solution.predicted_seconds < 0.9 * without


def test_a_layout_that_does_not_fit_memory_is_refused_and_says_by_how_much():
    need = max(replica_peaks(situation_of(DEMO).cost.model, DEMO.replicas[0]))
    with pytest.raises(NoPlanError, match="fits the devices' memory: some device lacks"):
        solve(situation_of(DEMO, dead=(0,), device_bytes=0.2 * need))
    roomy = solve(situation_of(DEMO, dead=(2, 3), device_bytes=10 * need))
    assert roomy.layout.num_micro_batches == DEMO.num_micro_batches


def test_a_mix_makes_up_for_what_whole_micro_batches_cannot():
    home = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=8)
    mixing = replace(home, mix=mix_for(situation_of(home).cost.model, (4, 4), num_stages=2))
    plain = solve(situation_of(home, speeds={0: 0.8}))
    mixed = solve(situation_of(mixing, speeds={0: 0.8}))
    assert mixed.predicted_seconds < 0.98 * plain.predicted_seconds
    assert mixed.layout.mix is not None
    scales = mixed.layout.mix.scales([replica.num_micro_batches for replica in mixed.layout.replicas])
    assert scales[0] < 1.0 < scales[1]


def test_a_healthy_job_with_a_mix_is_left_alone():
    mixing = replace(DEMO, mix=mix_for(situation_of(DEMO).cost.model, (8, 8), num_stages=2))
    assert not solve(situation_of(mixing)).changes


@given(situations(), st.floats(0.15, 1.5), st.sampled_from([1, 2]), st.integers(1, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_a_plan_exists_when_a_replica_of_live_ranks_fits(situation, part, width, depth):
    whole = max(replica_peaks(situation.cost.model, situation.home.replicas[0]))
    limited = replace(situation, device_bytes=part * whole)
    live = sorted(limited.throughputs)
    cells = [tuple(live[s * width : (s + 1) * width]) for s in range(depth)]
    assume(len(live) >= width * depth and depth <= limited.home.num_blocks)
    stages = even_stages(cells, limited.home.num_blocks)
    quota = limited.home.num_micro_batches
    assume(fastest_stages(limited, stages, quota, limited.home.schedule, widths=False, splits=True) is not None)
    assert not limited.excess_bytes(solve(limited).layout)


def test_replicas_that_cannot_hold_the_model_any_more_are_put_together():
    home = uniform_layout(num_blocks=10, tensor=2, pipeline=2, data=4, num_micro_batches=32)
    need = max(replica_peaks(situation_of(home).cost.model, home.replicas[0]))
    dead = (0, 2, 4, 6, 8, 10)  # three replicas of two devices, where the model needs nearly four
    solution = solve(situation_of(home, dead=dead, device_bytes=1.2 * need))
    assert len(solution.layout.replicas) <= 2
    assert len(solution.layout.ranks) == 10
    assert {"regroup", "rearrange"} & {action.lever for action in solution.actions}


@pytest.mark.parametrize(
    ("shape", "dead", "speeds", "memory"),
    [
        ((14, 1, 2, 3, 17), (1, 3), {0: 0.5, 2: 0.28, 4: 0.5}, 1.05),
        ((10, 2, 2, 2, 5), (1, 2, 5), {}, 1.5),
        ((8, 1, 3, 3, 11), (1, 4, 5), {}, math.inf),
    ],
)
def test_what_is_left_is_dealt_so_well_that_planning_again_finds_nothing_better(shape, dead, speeds, memory):
    blocks, tensor, pipeline, data, count = shape
    home = uniform_layout(num_blocks=blocks, tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=count)
    need = max(replica_peaks(situation_of(home).cost.model, home.replicas[0]))
    situation = situation_of(home, dead=dead, speeds=speeds, device_bytes=memory * need if memory < math.inf else None)
    solution = solve(situation)
    again = solve(replace(situation, layout=solution.layout, holders=frozenset(solution.layout.ranks)))
    assert again.predicted_seconds > solution.predicted_seconds * (1.0 - TIE)


def test_a_block_that_costs_nothing_and_a_backward_that_is_all_weights_are_planned_with():
    home = uniform_layout(num_blocks=6, tensor=1, pipeline=3, data=2, num_micro_batches=6)
    free = BlockCost(forward_flops_per_token=0.0, forward_flops_per_squared_length=0.0)
    costly = BlockCost(forward_flops_per_token=2.2e5, forward_flops_per_squared_length=0.0, backward_multiple=1.0)
    cost = CostModel(ModelSpec(blocks=(free, free, *[costly] * 4)), WORKLOAD)
    for home_of_engine in (replace(home, routable=True), replace(home, interleavable=True)):
        slow = situation_of(home_of_engine, speeds={2: 0.5})
        assert solve(replace(slow, cost=cost)).predicted_seconds > 0


def test_half_of_512_devices_dead_leaves_a_job_that_fits_memory():
    case = case_of("llama2-7b", 4, 64, 2, 128, 1.0)
    dead = random.Random(0).sample(case.home.ranks, 256)
    speeds = {rank: 1.0 for rank in case.home.ranks if rank not in dead}
    situation = Situation(
        layout=case.home,
        home=case.home,
        throughputs=speeds,
        cost=case.cost,
        holders=frozenset(speeds),
        device_bytes=64e9,
    )
    solution = solve(situation)
    assert not situation.excess_bytes(solution.layout)
    assert solution.bound_seconds / solution.predicted_seconds > 0.9


@given(situations(), st.sampled_from([1, 2, 3, 6]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_no_plan_puts_a_tensor_group_over_more_domains_than_the_full_shape_does(situation, size):
    placed = replace(situation, domains={rank: rank // size for rank in situation.home.ranks})
    assume(all(len({rank // size for rank in s.ranks}) == 1 for r in placed.home.replicas for s in r.stages))
    layout = solved(placed).layout
    assert all(len({rank // size for rank in s.ranks}) == 1 for r in layout.replicas for s in r.stages)


def test_deaths_are_gathered_by_exchanging_whole_stages_where_every_domain_is_one_tensor_group():
    home = uniform_layout(num_blocks=22, tensor=4, pipeline=5, data=4, num_micro_batches=32)
    situation = situation_of(home, dead=(0, 21, 28, 52, 73), device_bytes=1e9)
    placed = replace(situation, domains={rank: rank // 4 for rank in home.ranks})
    solution = solve(placed)
    assert "move_ranks" in {action.lever for action in solution.actions}
    assert len([replica for replica in solution.layout.replicas if len(replica.ranks) < 20]) == 1
    assert all(len({rank // 4 for rank in s.ranks}) == 1 for r in solution.layout.replicas for s in r.stages)


def test_a_job_whose_tensor_groups_span_nodes_anyway_may_put_anybody_anywhere():
    situation = situation_of(BIG, dead=(0, 14, 26), device_bytes=1e9)
    placed = replace(situation, domains={rank: rank for rank in BIG.ranks})
    assert not placed.keeps_domains
    assert solve(placed).layout == solve(situation).layout
