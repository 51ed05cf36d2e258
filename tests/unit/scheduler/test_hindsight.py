import math

import pytest

from services.scheduler.planning.decision import Choice, DecisionRule, decide
from services.scheduler.planning.hindsight import Hindsight
from services.scheduler.planning.solver import solve
from tests.unit.scheduler.planning_cases import situation_of
from tests.unit.scheduler.test_solver import DEMO


def test_nothing_measured_changes_nothing_and_a_plan_without_a_prediction_teaches_nothing():
    assert Hindsight().factor == 1.0
    assert Hindsight().after(0.0, 1.0) == Hindsight()
    assert Hindsight().after(1.0, math.nan) == Hindsight()


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


def test_a_job_whose_plans_fall_short_needs_a_larger_gain():
    solution = solve(situation_of(DEMO, speeds={3: 0.85}))
    assert decide(DecisionRule(), solution, forced=False).choice is Choice.APPLY
    known = Hindsight().after(1.0, 1.3).after(1.0, 1.3)
    assert decide(DecisionRule(), solution, forced=False, prediction_factor=known.factor).choice is Choice.KEEP
