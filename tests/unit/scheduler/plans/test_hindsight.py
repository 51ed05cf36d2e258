import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.planning.search.solver import solve
from evenkeel.services.scheduler.plans.decision import Choice, DecisionRule, decide
from evenkeel.services.scheduler.plans.hindsight import Hindsight
from tests.unit.planning.planning_cases import situation_of
from tests.unit.planning.search.test_solver import DEMO


def test_nothing_measured_changes_nothing_and_a_plan_without_a_prediction_teaches_nothing():
    assert Hindsight().factor == 1.0
    assert Hindsight().after(0.0, 1.0) == Hindsight()
    assert Hindsight().after(1.0, math.nan) == Hindsight()
    assert Hindsight().after(1.0, 0.0) == Hindsight()


def test_plans_that_keep_falling_short_by_a_third_are_expected_to():
    known, factors = Hindsight(), []
    for _ in range(8):
        known = known.after(3.0, 4.0)
        factors.append(known.factor)
    assert factors == sorted(factors)
    assert factors[0] == pytest.approx(math.sqrt(4.0 / 3.0))
    assert factors[-1] == pytest.approx(4.0 / 3.0, rel=0.05)


def test_one_wild_measurement_does_not_decide():
    assert Hindsight().after(1.0, 1000.0).factor < 1.8


def test_a_lever_that_falls_short_is_told_from_those_that_do_not_once_there_is_evidence():
    known = Hindsight()
    for _ in range(6):
        known = known.after(1.0, 1.3, ["depths"]).after(1.0, 1.0, ["layer_split"])
    assert known.factor_of("depths") > 1.2 > 1.1 > known.factor_of("layer_split")
    assert known.factor_of("never pulled") == pytest.approx(known.factor)
    between = known.factor_for(["depths", "layer_split"])
    assert known.factor_of("layer_split") < between < known.factor_of("depths")


def test_the_words_name_the_levers_of_the_plan_that_differ_from_the_others():
    known = Hindsight().after(1.0, 2.0, ["depths"]).after(1.0, 1.0, ["layer_split"]).after(1.0, 1.0, ["mix"])
    job, depths, split = known.factor, known.factor_of("depths"), known.factor_of("layer_split")
    assert known.words(["layer_split", "never pulled", "depths"]) == (
        f"Hindsight: this job's plans are expected to take {job:.2f} times what is predicted (3 measured); by lever: "
        f"depths {depths:.2f} (1 measured), layer_split {split:.2f} (1 measured), this one "
        f"{known.factor_for(['depths', 'layer_split', 'never pulled']):.2f} times."
    )
    even = Hindsight().after(1.0, 1.0, ["depths"])
    assert even.words(["depths"]) == (
        "Hindsight: this job's plans are expected to take 1.00 times what is predicted (1 measured), this one 1.00 "
        "times."
    )
    assert Hindsight().words(["depths"]) == ""


def test_one_plan_says_little_about_its_lever_beyond_the_job():
    known = Hindsight().after(1.0, 1.5, ["depths"])
    assert known.factor < known.factor_of("depths") < 1.32


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.sets(st.sampled_from("abc"))), max_size=12))
def test_no_levers_factor_is_further_off_than_the_furthest_plan(plans):
    known = Hindsight()
    for measured, levers in plans:
        known = known.after(1.0, measured, levers)
    least, most = min([1.0, *(m for m, _ in plans)]), max([1.0, *(m for m, _ in plans)])
    for levers in ([], ["a"], ["a", "b", "c"]):
        assert least * (1 - 1e-9) <= known.factor_for(levers) <= min(3.0, most) * (1 + 1e-9)


def test_a_job_whose_plans_fall_short_needs_a_larger_gain():
    solution = solve(situation_of(DEMO, speeds={3: 0.85}))
    assert decide(DecisionRule(), solution, forced=False).choice is Choice.APPLY
    known = Hindsight().after(1.0, 1.3).after(1.0, 1.3)
    assert decide(DecisionRule(), solution, forced=False, prediction_factor=known.factor).choice is Choice.KEEP
