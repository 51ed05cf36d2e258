"""Orders that swaps better, and plans of the published schedules that a search begins with."""

from contextlib import suppress
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.pipelines.case import Case, Layer, allowed
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.climbing.improve import first_priorities, improve
from evenkeel.pipelines.search.climbing.reorder import reorder
from evenkeel.pipelines.search.dispatching.dispatch import list_schedule
from evenkeel.pipelines.search.dispatching.network import network_of, plan_of, starts_of
from evenkeel.pipelines.search.generate import generate
from evenkeel.pipelines.search.starts.assignments import proposals
from evenkeel.pipelines.search.starts.balance import Balance
from evenkeel.pipelines.search.starts.published import published_plans
from tests.unit.pipelines.documents import small_cases


def limit_of(case: Case) -> float:
    return inf if case.memory_limit is None else float(allowed(case.memory_limit))


def published(case: Case) -> list[tuple[Plan, float]]:
    found = []
    for plan in published_plans(case, lambda _: True):
        with suppress(ValueError):  # above the memory limit
            found.append((plan, evaluate(case, plan).makespan))
    return found


@settings(max_examples=40, deadline=None)
@given(small_cases(), st.integers(0, 9))
def test_swaps_keep_all_rules_and_no_schedule_gets_longer(case: Case, seed: int) -> None:
    balance, limit = Balance(case), limit_of(case)
    for start in filter(balance.fits, proposals(case)):
        network = network_of(case, start.partition, start.placement)
        listed = list_schedule(network.stages, first_priorities(network.stages), limit, inf, False, inf)
        begun = evaluate(case, plan_of(network, listed.starts.tolist())).makespan
        generator = np.random.default_rng(seed)
        starts, makespan, made = reorder(network.stages, listed.starts, limit, 150, 0.0, generator)
        assert makespan <= begun + 1e-6
        assert made <= 150 + 5
        # evaluate raises if anything is left out, out of turn or held above the limit.
        evaluation = evaluate(case, plan_of(network, starts.tolist()))
        assert evaluation.makespan == pytest.approx(makespan)


def test_swaps_end_at_the_goal() -> None:
    layers = (Layer(forward=3, backward_input=4, backward_weight=2),) * 4
    case = Case(name="goal", devices=2, micro_batches=3, layers=layers)
    stages = network_of(case, (2, 2), (0, 1)).stages
    listed = list_schedule(stages, first_priorities(stages), inf, inf, False, inf)
    generator = np.random.default_rng(0)
    assert reorder(stages, listed.starts, inf, 50, listed.makespan, generator)[1:] == (listed.makespan, 0)


TIGHT = Case(
    name="tight",
    devices=2,
    micro_batches=4,
    layers=(
        Layer(forward=18, backward_input=9, backward_weight=0, activation=3),
        Layer(forward=13, backward_input=26, backward_weight=3, activation=2),
        Layer(forward=5, backward_input=31, backward_weight=0, activation=1),
        Layer(forward=12, backward_input=11, backward_weight=0, activation=2),
        Layer(forward=30, backward_input=36, backward_weight=0, activation=2),
        Layer(forward=21, backward_input=17, backward_weight=0, activation=2),
    ),
    communication=10,
    memory_limit=11,
)


def test_in_tight_memory_swaps_find_what_no_list_schedule_is() -> None:
    limit, generator = limit_of(TIGHT), np.random.default_rng(0)
    stages = network_of(TIGHT, (1, 1, 2, 1, 1), (1, 0, 0, 1, 1)).stages
    listed = improve(stages, first_priorities(stages), inf, limit, 30, 5.0, generator, inf)
    assert reorder(stages, listed.starts, limit, 2000, 0.0, generator)[1] < listed.makespan


@settings(max_examples=25, deadline=None)
@given(small_cases())
def test_a_search_is_behind_no_published_schedule(case: Case) -> None:
    found = generate(case, Budget(20)).evaluation.makespan
    assert all(found <= makespan + 1e-6 for _, makespan in published(case))


@settings(max_examples=25, deadline=None)
@given(small_cases())
def test_a_backward_in_one_block_may_be_taken_as_two(case: Case) -> None:
    for plan, makespan in published(case):
        network = network_of(case, plan.partition, plan.placement)
        starts = starts_of(network, plan, evaluate(case, plan).starts)
        assert evaluate(case, plan_of(network, starts)).makespan <= makespan + 1e-6
