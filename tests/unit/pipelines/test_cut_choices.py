"""Cuts that could be faster are all found, and what is left of them decides the large SlackPipe case."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenkeel.pipelines.case import Case, PlacementRule, RoleCost, StageBias
from evenkeel.pipelines.case_file import case_from_json
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.proofs.cut_choices import cuts_below
from evenkeel.pipelines.proofs.exact_model import prove_cuts, prove_fixed
from evenkeel.pipelines.search.dispatching.network import network_of
from evenkeel.pipelines.search.starts.assignments import Assignment
from evenkeel.pipelines.search.starts.balance import Balance
from tests.unit.pipelines.documents import document, small_cases

BIAS = StageBias(first=RoleCost(forward=2, backward_input=3), middle=RoleCost(forward=1), last=RoleCost(forward=4))


def every_cut(case: Case) -> list[Assignment]:
    assert case.stages is not None
    placement = tuple(stage % case.devices for stage in range(case.stages))
    borders = ((0, *inner, len(case.layers)) for inner in combinations(range(1, len(case.layers)), case.stages - 1))
    return [Assignment(tuple(b - a for a, b in pairwise(edges)), placement) for edges in borders]


@settings(max_examples=60, deadline=None)
@given(small_cases(), st.integers(1, 9), st.sampled_from([None, BIAS]), st.floats(0.0, 1.0), st.booleans())
def test_all_cuts_that_the_work_does_not_rule_out_are_found(
    drawn: Case, stages: int, bias: StageBias | None, part: float, alike: bool
) -> None:
    assume(stages <= len(drawn.layers))
    layers = (drawn.layers[0],) * len(drawn.layers) if alike else drawn.layers
    case = replace(drawn, layers=layers, stages=stages, placement=PlacementRule.CYCLIC, stage_bias=bias)
    balance, cuts = Balance(case), every_cut(case)
    scores = sorted(balance.score(cut)[0] for cut in cuts)
    value = scores[int(part * (len(scores) - 1))] + 0.5
    expected = {cut.partition for cut in cuts if balance.score(cut)[0] < value}
    found = [cut for cut in cuts_below(case, value) if balance.score(cut)[0] < value]
    assert len(found) == len(expected)
    assert {cut.partition for cut in found} == expected


def test_a_case_with_a_free_number_of_stages_has_no_cuts_to_count() -> None:
    case = case_from_json(document("simpipe", "simpipe-llama3-8B-p4-m8"))
    with pytest.raises(ValueError, match="stages"):
        next(cuts_below(case, 1e9))


def test_of_550_million_cuts_of_the_large_slackpipe_case_some_hundreds_could_beat_its_optimum() -> None:
    case = case_from_json(document("slackpipe", "slackpipe-uniform-b8-n8-w4-l64"))
    assert 0 < len(list(cuts_below(case, 408))) < 1000


def test_the_large_slackpipe_case_has_a_plan_as_short_as_its_optimum() -> None:
    case = case_from_json(document("slackpipe", "slackpipe-uniform-b8-n8-w4-l64"))
    network = network_of(case, (3, 5, 8, 8, 14, 11, 8, 7), tuple(stage % 4 for stage in range(8)))
    answer = prove_fixed(network, None, 1, 409, 20.0)
    assert answer.plan is not None
    assert answer.is_proven
    assert evaluate(case, answer.plan).makespan == 408


def test_cuts_as_variables_of_one_model_find_the_optimum_too() -> None:
    recorded = document("slackpipe", "slackpipe-unit-b4-n4-w2-l8")
    case = case_from_json(recorded)
    answer = prove_cuts(case, 1, recorded["optimum"]["value"] + 1, 20.0)
    assert answer.is_proven
    assert answer.plan is not None
    assert evaluate(case, answer.plan).makespan == recorded["optimum"]["value"]
