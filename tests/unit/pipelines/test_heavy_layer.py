"""A head that is most of a device's work: what may stand beside it, and that plans are sought round it."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from evenkeel.pipelines.case import Case, Layer, PlacementRule
from evenkeel.pipelines.case_file import case_from_json
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.proofs.placement_bound import placement_bound
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.climbing.changes import balanced
from evenkeel.pipelines.search.climbing.improve import first_priorities, improve
from evenkeel.pipelines.search.generate import generate
from evenkeel.pipelines.search.starts.assignments import Assignment, proposals
from evenkeel.pipelines.search.starts.balance import Balance
from evenkeel.pipelines.search.starts.heavy_layer import heavy_proposals
from evenkeel.pipelines.search.tables import stages_of, table_of
from tests.unit.pipelines.documents import document

SMALL = Layer(forward=2, backward_input=3, backward_weight=2)
HEAD = Layer(forward=18, backward_input=22, backward_weight=4)
HEAVY = Case(name="heavy head", devices=4, micro_batches=8, layers=(*[SMALL] * 21, HEAD))


def test_the_head_has_the_first_layers_beside_it_and_all_layers_are_dealt() -> None:
    found = list(heavy_proposals(HEAVY))
    assert found
    for proposal in found:
        assert sum(proposal.partition) == len(HEAVY.layers)
        assert min(proposal.partition) == proposal.partition[-1] == 1
        assert proposal.placement[0] == proposal.placement[-1]
        assert proposal.placement.count(proposal.placement[0]) == 2
        assert set(proposal.placement) == set(range(HEAVY.devices))


@pytest.mark.parametrize(
    "other",
    [
        replace(HEAVY, layers=(SMALL,) * 22),
        replace(HEAVY, placement=PlacementRule.CYCLIC),
        replace(HEAVY, stages=8),
        replace(HEAVY, devices=2, speeds=()),
    ],
)
def test_nothing_is_proposed_for_a_light_head_or_where_stages_have_their_places(other: Case) -> None:
    assert not list(heavy_proposals(other))


def test_the_fastest_device_takes_the_head() -> None:
    case = replace(HEAVY, speeds=(0.5, 0.8, 1.0, 0.9))
    assert {proposal.placement[-1] for proposal in heavy_proposals(case)} == {2}


def test_windows_say_more_than_work_where_layers_in_the_middle_stand_beside_the_head() -> None:
    best = next(iter(heavy_proposals(HEAVY)))
    middle = replace(best, placement=tuple(best.placement[-1] if s == 3 else d for s, d in enumerate(best.placement)))
    own = best.placement[-1]
    assert Balance(HEAVY).windows(middle)[own] > Balance(HEAVY).loads(middle)[own]


def test_the_bound_knows_what_must_lie_before_and_after_the_head() -> None:
    # Work alone is 8 (21 x 7 + 44) / 4 = 382; the head's passes 320, the ways to it and back 42 and 63.
    bound = placement_bound(HEAVY, seconds=5.0)
    assert bound >= 320 + 42 + 63
    assert evaluate(HEAVY, generate(HEAVY, Budget(60)).plan).makespan >= bound


def test_the_plan_that_is_found_for_a_heavy_head_starts_from_them() -> None:
    case = case_from_json(document("simpipe", "simpipe-nemotron-nano-v2-9B-p8-m16"))
    table, generator = table_of(case), np.random.default_rng(1)

    def start(assignment: Assignment) -> float:
        sizes, devices = np.array(assignment.partition), np.array(assignment.placement)
        stages = stages_of(table, *balanced(table, sizes, devices, generator, 300, True))
        return improve(stages, first_priorities(stages), inf, inf, 2, 0.0, generator, inf).makespan

    plain = [each for each in proposals(case) if len(each.partition) in (16, 32)]
    assert min(map(start, list(heavy_proposals(case))[:4])) < 0.99 * min(map(start, plain))
