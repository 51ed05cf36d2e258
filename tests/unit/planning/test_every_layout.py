"""All layouts of small jobs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.solver.exact import Enumeration, model_with_activations, state_of
from benchmarks.planning.solver.more_capacity import WORKLOAD
from benchmarks.planning.solver.more_capacity import state_of as random_state
from evenkeel.layouts.layout import Replica, Stage, uniform_layout
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.costs.risks import crowding, judged_seconds
from evenkeel.planning.exact.cell_table import cell_table
from evenkeel.planning.exact.every_layout import Looked, look_at_all
from evenkeel.planning.exact.group_deal import best_deal
from evenkeel.planning.levers.balance.tensor_width import best_widths
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from evenkeel.planning.pipelined.pipeline_bound import least_beside, pipeline_bound
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE
from tests.unit.planning.planning_cases import situation_of, situations

FAR = 1e3
"""Seconds that every layout of these jobs is below."""


@given(st.lists(st.sampled_from([1.0, 0.8, 0.45, 0.3]), min_size=1, max_size=5), st.floats(0.3, 3.0))
@settings(max_examples=60, deadline=None)
def test_the_table_has_the_seconds_of_the_widths_that_it_names_and_these_fit(speeds: list[float], part: float) -> None:
    model = model_with_activations(3)
    cost, num_blocks = CostModel(model, WORKLOAD), len(model.blocks)
    own = tuple(sorted(speeds, reverse=True))
    kinds = sorted(set(own), reverse=True)
    seconds = np.vstack((cost.block_parts("zb-h1").T, np.zeros(num_blocks)))
    held = np.array([[2.0 * b.parameter_bytes + b.optimizer_bytes + b.activation_bytes for b in model.blocks]])
    limit = part * held.sum() / len(own)
    found, allowed = cell_table(
        np.array([[own.count(kind) for kind in kinds]]),
        np.array(kinds),
        np.array([block.max_width for block in model.blocks]),
        seconds,
        np.ones(len(own) + 1),
        cost.main_width,
        held,
        limit,
        False,
    )
    for first in range(num_blocks):
        for stop in range(first + 1, num_blocks + 1):
            if math.isinf(found[0, 0, 0, first, stop]):
                continue
            shares = best_widths(max(cost.main_width, len(own)), own, int(allowed[0, 0, first, stop]))
            assert min(shares) > 0
            stage = Stage(first_block=first, stop_block=stop, ranks=tuple(range(len(own))), shares=shares)
            expected = cost.parts(stage, dict(enumerate(own)), "zb-h1")
            assert found[:, 0, 0, first, stop] == pytest.approx(expected)
            peak = replica_peaks(model, Replica(stages=(stage,), num_micro_batches=1))[0]
            assert peak <= limit * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", [2001, 2004, 2005, 2009, 2013, 2021, 2047, 2051, 2055, 2120])
def test_what_is_found_is_the_best_of_all_layouts_whatever_is_known(seed: int) -> None:
    """The benchmark enumerates them in another way. In most of these states plans were up to 10 % slower."""
    state = state_of(seed)
    plan = judged_seconds(state, solve(state).layout)
    looked = look_at_all(state.wary, 1.05 * plan, 0.0, "1f1b")
    assert looked.is_all
    assert looked.layout is not None
    judged = judged_seconds(state, looked.layout)
    assert judged <= plan * (1.0 + 1e-6)
    best, _ = Enumeration(state).best(judged)
    assert judged <= best * (1.0 + 1e-6)
    assert look_at_all(state.wary, judged, 0.0, "1f1b").layout is None
    again = look_at_all(state.wary, judged * 1.001, 0.0, "1f1b").layout
    assert again is not None
    assert judged_seconds(state, again) == pytest.approx(judged)


@pytest.mark.parametrize("seed", [2001, 2004, 2005, 2009, 2013, 2021, 2047, 2051, 2055, 2120])
def test_under_two_schedules_the_plan_is_the_best_of_all_layouts_under_either(seed: int) -> None:
    state = state_of(seed)
    state = replace(state, home=replace(state.home, schedules=("1f1b", "zb-h1")))
    judged = judged_seconds(state, solve(state).layout)
    for schedule in ("1f1b", "zb-h1"):
        best, _ = Enumeration(state, schedule).best(judged)
        assert judged <= best * (1.0 + TIE)
        looked = look_at_all(state.wary, 1.05 * judged, 0.0, schedule)
        assert looked.is_all
        if looked.layout is None:
            continue
        assert looked.layout.schedule == schedule
        assert not state.excess_bytes(looked.layout)
        again = look_at_all(state.wary, judged_seconds(state, looked.layout) * 1.001, 0.0, schedule).layout
        assert again is not None
        assert judged_seconds(state, again) == pytest.approx(judged_seconds(state, looked.layout))
    zero_bubble = look_at_all(state.wary, FAR, 0.0, "zb-h1").layout
    assert zero_bubble is not None
    found = judged_seconds(state, zero_bubble)
    assert Enumeration(state, "zb-h1").best(found)[0] == pytest.approx(found)


@pytest.mark.parametrize("seed", [930052, 930107])
def test_a_limit_just_above_the_best_layout_hides_it_from_no_schedule(seed: int) -> None:
    """In the first of these a single micro-batch was taken to wait for the weights' gradients of every stage."""
    state = random_state(seed).wary
    for schedule in ("1f1b", "zb-h1"):
        best = look_at_all(state, FAR, 0.125, schedule).layout
        assert best is not None
        judged = judged_seconds(state, best)
        found = look_at_all(state, judged * 1.001, 0.125, schedule).layout
        assert found is not None
        assert judged_seconds(state, found) == pytest.approx(judged)


@given(
    st.lists(st.tuples(*[st.floats(0.0, 4.0)] * 3), min_size=1, max_size=5),
    st.integers(1, 9),
    st.floats(0.0, 1.0),
)
@settings(deadline=None)
def test_no_pipeline_is_done_before_the_closed_form_says_so(
    some: list[tuple[float, float, float]], quota: int, transfer_seconds: float
) -> None:
    parts = np.array(some) + 0.1
    whole, last = parts.sum(axis=1), len(parts) - 1
    forward_part, backward_part = (parts[:, 0] / whole).max(), (1.0 - parts[:, 0] / whole).max()
    weight_part = (parts[:, 2] / whole).max()
    taken = pipeline_makespan(parts, quota, np.full(last, transfer_seconds)) * (1.0 + 1e-9)
    ahead = back = 0.0
    for s in range(last + 1):
        later = parts[s + 1 :, :2].sum()
        asked = (later, quota, forward_part, backward_part, transfer_seconds)
        assert pipeline_bound(parts[: s + 1], last - s, *asked, math.inf)[0] <= taken
        if s < last:
            share = float(whole[s + 1 :].max())
            put_off = min(quota, last + 1) * weight_part * share
            passed = ahead + parts[s, 0], back + parts[s, 1]
            assert least_beside(parts[0, 2], *passed, put_off) + quota * share <= taken
        ahead, back = ahead + parts[s, 0] + transfer_seconds, back + parts[s, 1] + transfer_seconds


@given(situations())
@settings(deadline=None)
def test_it_is_a_layout_of_live_ranks_that_fits_and_keeps_blocks_micro_batches_and_domains(
    situation: Situation,
) -> None:
    home = replace(situation.home, mix=None, schedules=(), routable=False)
    wary = replace(situation, layout=replace(situation.layout, mix=None), home=home).wary
    looked = look_at_all(wary, FAR, 0.0, "1f1b")
    if looked.layout is None or looked.base is None:
        return
    for layout in (looked.base, looked.layout):
        assert {*layout.ranks, *layout.standbys} == set(wary.throughputs)
        assert layout.num_micro_batches == home.num_micro_batches
        assert len(layout.replicas) <= len(home.replicas)
    assert not wary.excess_bytes(looked.layout)
    for replica in looked.layout.replicas:
        assert [stage.first_block for stage in replica.stages] == [0, *[s.stop_block for s in replica.stages[:-1]]]
        assert replica.stages[-1].stop_block == home.num_blocks
        assert all(len({wary.domain(rank) for rank in stage.ranks}) == 1 for stage in replica.stages)
        if wary.device_bytes is None:
            assert crowding(wary, replica.stages) <= 1e-6


def test_no_stage_spans_two_domains() -> None:
    home = uniform_layout(num_blocks=6, tensor=2, pipeline=2, data=2, num_micro_batches=4)
    domains = {rank: rank // 2 for rank in home.ranks}
    situation = replace(situation_of(home, speeds={0: 0.5, 5: 0.7}), domains=domains, device_bytes=1e12)
    found = look_at_all(situation.wary, FAR, 0.0, "1f1b").layout
    assert found is not None
    assert all(len({domains[rank] for rank in stage.ranks}) == 1 for r in found.replicas for stage in r.stages)


def test_ranks_stay_with_the_blocks_that_they_hold() -> None:
    home = uniform_layout(num_blocks=6, tensor=1, pipeline=2, data=2, num_micro_batches=8)
    situation = replace(situation_of(home, speeds={3: 0.5}), device_bytes=1e12)
    found = look_at_all(situation.wary, FAR, 0.0, "1f1b").layout
    assert found is not None
    held = {stage.ranks[0]: stage.first_block for replica in home.replicas for stage in replica.stages}
    for replica in found.replicas:
        if len(replica.stages) == 2:
            assert [held[stage.ranks[0]] for stage in replica.stages] == [0, 3]


NOTHING = Looked(base=None, layout=None, is_all=False)


def test_jobs_that_are_too_large_are_left_to_the_climb_and_those_with_other_rules_too() -> None:
    home = uniform_layout(num_blocks=6, tensor=2, pipeline=2, data=2, num_micro_batches=4)
    ill = situation_of(home, speeds={0: 0.5})
    mix = mix_for(ill.cost.model, [2, 2], num_stages=2)
    large = uniform_layout(num_blocks=12, tensor=3, pipeline=3, data=3, num_micro_batches=9)
    many = situation_of(large, speeds={rank: 0.3 + 0.02 * rank for rank in range(9)})
    mixed = replace(ill, home=replace(home, mix=mix))
    looked = look_at_all(mixed.wary, FAR, 0.0, "1f1b")
    assert not looked.is_all
    assert looked.layout is not None
    assert (looked.layout.schedule, looked.layout.mix) == ("1f1b", mix)
    only = replace(ill, home=replace(home, schedule="zb-h1"))
    assert look_at_all(only.wary, FAR, 0.0, "zb-h1") == look_at_all(many.wary, FAR, 0.0, "1f1b") == NOTHING
    assert look_at_all(ill.wary, FAR, 0.0, "1f1b").is_all


def test_groups_are_dealt_so_that_the_slowest_is_soonest_done() -> None:
    # Three devices of one kind: n of them take 6 / n seconds for a micro-batch.
    seconds = np.full((4, 1, 5), math.inf)
    for number in (1, 2, 3):
        seconds[number, 0, 1:] = [6.0 / number * quota for quota in (1, 2, 3, 4)]
    contains = np.tril(np.ones((4, 4), dtype=bool))
    fixed = np.ones(3)
    judged, deal = best_deal(seconds, contains, 4, 2, 0.0, fixed, 100.0)
    assert judged == pytest.approx(9.0)
    assert deal[:, 2].sum() == 4
    assert deal[:, 0].sum() <= 3
    risky, alone = best_deal(seconds, contains, 4, 2, 0.5, fixed, 100.0)
    assert (risky, len(alone)) == (pytest.approx(10.0), 2)
    assert best_deal(seconds, contains, 4, 2, 0.0, fixed, 9.0)[1].shape == (0, 3)
    costly_together = best_deal(seconds, contains, 4, 2, 0.0, np.array([0.0, 1.0, 2.0]), 100.0)
    assert costly_together[0] == pytest.approx(9.0)
    assert len(costly_together[1]) == 1
