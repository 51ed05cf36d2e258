from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from evenkeel.pipelines.case import Backward, Case, Layer, RoleCost, StageBias
from evenkeel.pipelines.case_file import case_from_json
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.octopipe import octopipe
from evenkeel.pipelines.proofs.bounds import lower_bound, waits, work_bound
from evenkeel.pipelines.proofs.exact import prove
from evenkeel.pipelines.proofs.placement_bound import placement_bound
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.climbing.improve import first_priorities
from evenkeel.pipelines.search.dispatching.dispatch import list_schedule
from evenkeel.pipelines.search.dispatching.network import network_of
from evenkeel.pipelines.search.generate import generate
from evenkeel.pipelines.search.starts.assignments import Assignment, proposals
from evenkeel.pipelines.search.starts.balance import Balance, early_idle, works
from evenkeel.pipelines.search.tables import durations_of, stages_of, table_of
from tests.unit.pipelines.documents import document, documents, small_cases


@settings(max_examples=25, deadline=None)
@given(small_cases())
def test_a_plan_covers_all_work_within_memory_and_is_no_shorter_than_the_bounds(case: Case) -> None:
    found = generate(case, Budget(40))
    # evaluate raises if anything is left out, done twice or held above the limit.
    evaluation = evaluate(case, found.plan)
    assert evaluation.makespan >= lower_bound(case) - 1e-6
    assert evaluation.makespan >= max(evaluation.busy)
    if case.has_equal_devices:
        assert evaluation.makespan >= placement_bound(case, seconds=1.0) - 0.01
    if case.memory_limit is not None:
        assert max(evaluation.peak_activation) <= case.memory_limit


@settings(max_examples=25, deadline=None)
@given(small_cases())
def test_while_a_queue_forms_no_more_devices_are_at_work_than_it_lets(case: Case) -> None:
    for proposal in proposals(case):
        network = network_of(case, proposal.partition, proposal.placement)
        stages = network.stages
        starts = list_schedule(stages, first_priorities(stages), inf, inf, False, inf).starts.tolist()
        spans = [(start, start + length) for start, length in zip(starts, network.durations, strict=True)]
        forwards = [layer.forward / max(case.speeds) for layer in case.layers]
        for most, until in enumerate(waits(forwards, case.micro_batches, case.devices)):
            for moment in (start for start in starts if start < until - 1e-9):
                assert sum(start <= moment < end - 1e-9 for start, end in spans) <= most


def test_of_a_queue_behind_a_heavy_first_layer_each_waits_longer_for_its_turn() -> None:
    assert waits([10, 2, 2, 2], 8, 4) == [0, 10, 16, 16]
    assert waits([10, 2, 2, 30], 2, 4) == [0, 10, 20, 44]
    heavy = Layer(forward=10, backward_input=2, backward_weight=2)
    light = Layer(forward=2, backward_input=2, backward_weight=2)
    case = Case(name="queue", devices=3, micro_batches=4, layers=(heavy, *[light] * 20))
    assert work_bound(case) == pytest.approx((4 * (14 + 120) + 10 + 12) / 3)
    assert lower_bound(case) == pytest.approx((4 * (14 + 120) + 10 + 20) / 3)


@settings(max_examples=25, deadline=None)
@given(small_cases())
def test_the_work_of_an_assignment_is_a_bound_on_every_order_of_it(case: Case) -> None:
    found = generate(case, Budget(30))
    assignment = Assignment(found.plan.partition, found.plan.placement)
    work, windows = Balance(case).loads(assignment), Balance(case).windows(assignment)
    assert max(windows) <= found.evaluation.makespan + 1e-6
    assert all(less <= more + 1e-6 for less, more in zip(work, windows, strict=True))


@settings(max_examples=25, deadline=None)
@given(small_cases())
def test_work_and_early_idle_are_no_more_than_the_schedule_they_were_read_from(case: Case) -> None:
    found = generate(case, Budget(30))
    table = table_of(case)
    sizes, devices = np.array(found.plan.partition), np.array(found.plan.placement)
    stages = stages_of(table, sizes, devices)
    schedule = list_schedule(stages, first_priorities(stages), table.limit, inf, False, inf)
    durations = durations_of(stages)
    idle = early_idle(devices, durations, schedule.starts, schedule.makespan, case.devices)
    work = works(table, sizes, devices)
    assert work == pytest.approx(found.evaluation.busy)
    assert idle.min() >= -1e-6
    assert (work + idle).max() <= schedule.makespan + 1e-6


@settings(max_examples=15, deadline=None)
@given(small_cases())
def test_the_generator_is_never_behind_the_octopipe_rules(case: Case) -> None:
    try:
        rules = evaluate(case, octopipe(case)).makespan
    except ValueError:
        return  # no balanced partition of the rules fits the memory
    assert generate(case, Budget(30)).evaluation.makespan <= rules + 1e-6


@settings(max_examples=25, deadline=None)
@given(small_cases())
def test_every_proposal_covers_the_layers(case: Case) -> None:
    for proposal in proposals(case):
        assert sum(proposal.partition) == len(case.layers)
        assert min(proposal.partition) >= 1
        assert len(proposal.partition) == len(proposal.placement)


def test_the_same_seed_gives_the_same_plan() -> None:
    case = case_from_json(document("simpipe", "simpipe-llama3-8B-p4-m8"))
    assert generate(case, Budget(50), seed=3).plan == generate(case, Budget(50), seed=3).plan


def test_a_deadline_ends_the_search() -> None:
    ticks = iter(range(10**9))
    case = case_from_json(document("simpipe", "simpipe-llama3-8B-p4-m8"))
    found = generate(case, Budget(10**9, deadline_seconds=30.0, clock=lambda: float(next(ticks))))
    assert next(ticks) < 50
    assert found.evaluation.makespan >= found.bound


@pytest.mark.parametrize(("forward", "backward", "weight"), [(3, 0, 0), (0, 3, 2), (3, 0, 2), (0, 0, 4), (0, 0, 0)])
def test_passes_that_take_no_time_are_ordered_too(forward: float, backward: float, weight: float) -> None:
    layer = Layer(forward=forward, backward_input=backward, backward_weight=weight)
    case = Case(name="free passes", devices=2, micro_batches=4, layers=(layer,) * 4)
    found = generate(case, Budget(60))
    assert found.evaluation.makespan >= found.bound
    assert found.gap >= 0


# Each bound alone: what it says is what the best plan needs.
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Two devices would wait longer for each other's messages than one takes for all.
        ({"communication": 1000.0}, 3 * 4 * 6),
        # Five alike on two devices: one has three of them.
        ({"layers": (Layer(forward=2, backward_input=2, backward_weight=2),) * 5}, 3 * 3 * 6),
        # One at a time, each held for its way there and back.
        ({"devices": 4, "memory_limit": 1.0}, 3 * (4 * 4 + 2)),
        ({"stages": 1}, 3 * 4 * 6),
        ({"stage_bias": StageBias(first=RoleCost(forward=4)), "stages": 1}, 3 * (4 * 6 + 4)),
    ],
)
def test_a_bound_that_the_best_plan_meets_proves_it(changes: dict[str, Any], expected: float) -> None:
    layers = (Layer(forward=2, backward_input=2, backward_weight=2),) * 4
    found = generate(
        Case(**{"name": "bound", "devices": 2, "micro_batches": 3, "layers": layers, **changes}), Budget(60)
    )
    assert found.bound == found.evaluation.makespan == expected


def test_a_limit_of_fractions_that_sum_to_it_is_kept() -> None:
    layer = Layer(forward=1, backward_input=1, backward_weight=1, activation=0.1)
    found = generate(Case(name="tenths", devices=1, micro_batches=4, layers=(layer,) * 3, memory_limit=0.3), Budget(20))
    assert found.evaluation.makespan == 36


def test_the_rules_end_with_the_deadline_and_there_is_a_plan() -> None:
    layer = Layer(forward=10, backward_input=12, backward_weight=9)
    case = Case(name="large", devices=16, micro_batches=8, layers=(layer,) * 64)
    ticks = iter(range(10**9))
    found = generate(case, Budget(10**9, deadline_seconds=50.0, clock=lambda: float(next(ticks))))
    assert next(ticks) < 100
    assert found.evaluation.makespan >= found.bound


def test_a_limit_that_no_placement_fits_is_refused_with_what_to_do() -> None:
    case = case_from_json(document("slackpipe", "slackpipe-uniform-b2-n2-w2-l4"))
    layers = tuple(replace(layer, activation=size) for layer, size in zip(case.layers, (2, 2, 1, 1), strict=True))
    with pytest.raises(ValueError, match=r"raise memory\.limit"):
        generate(replace(case, layers=layers, memory_limit=3))


@pytest.mark.parametrize("name", [each["name"] for each in documents("tiny_optimum")])
def test_a_tiny_case_is_proven_at_its_known_optimum(name: str) -> None:
    recorded = document("tiny_optimum", name)
    case = case_from_json(recorded)
    proof = prove(case, generate(case, Budget(150)).plan)
    assert proof.is_optimal
    assert proof.makespan == evaluate(case, proof.plan).makespan == recorded["optimum"]["value"]


SMALL_SLACKPIPE = [each["name"] for each in documents("slackpipe") if len(each["layers"]) <= 8]


@pytest.mark.parametrize("name", SMALL_SLACKPIPE)
def test_a_small_slackpipe_case_is_proven_at_its_known_optimum(name: str) -> None:
    recorded = document("slackpipe", name)
    case = case_from_json(recorded)
    proof = prove(case, generate(case, Budget(100)).plan)
    assert proof.is_optimal
    assert proof.makespan == recorded["optimum"]["value"]
    assert all(device == stage % case.devices for stage, device in enumerate(proof.plan.placement))


@pytest.mark.parametrize("name", [each["name"] for each in documents("simpipe")])
def test_the_work_bound_is_the_recorded_lower_bound(name: str) -> None:
    recorded = document("simpipe", name)
    assert work_bound(case_from_json(recorded)) == pytest.approx(recorded["lower_bound"], rel=1e-4)


def test_a_little_search_beats_the_recorded_rules_with_the_memory_of_1f1b() -> None:
    recorded = document("simpipe", "simpipe-nemotron-h-8B-p4-m8")
    variant = recorded["variants"][0]
    case = replace(case_from_json(recorded), memory_limit=variant["memory_limit"])
    found = generate(case, Budget(150))
    assert found.evaluation.makespan < 0.97 * variant["reference"]["octopipe_simpipe_rules_with_admission"]
    assert max(found.evaluation.peak_activation) <= variant["memory_limit"]


def test_a_slow_device_gets_less_work() -> None:
    case = replace(case_from_json(document("simpipe", "simpipe-llama3-8B-p4-m8")), speeds=(1.0, 1.0, 1.0, 0.5))
    found = generate(case, Budget(150))
    work = [busy * speed for busy, speed in zip(found.evaluation.busy, case.speeds, strict=True)]
    assert work[3] < 0.65 * min(work[:3])
    assert case.backward is Backward.SPLIT
