import math

import pytest

from demo.lateness import ON_TIME, lateness
from demo.truths import TruthKind
from tests.unit.demo.synthetic_run import Run, whole_run


def test_a_run_whose_devices_kept_their_speeds_is_on_time_whoever_was_slowed() -> None:
    assert lateness(whole_run().finish()) == pytest.approx(1.0, abs=0.02)


def test_a_fifth_of_the_run_beside_others_makes_it_late() -> None:
    run = Run()
    run.train(40)
    run.truth(TruthKind.COMPUTE_SLOW, 3, 0.5)
    run.lateness = 1.3
    run.train(10)
    assert lateness(run.finish()) == pytest.approx(1.3, abs=0.05)
    assert lateness(run.finish()) > ON_TIME


def test_of_a_run_in_which_nothing_ran_nothing_is_known() -> None:
    assert math.isnan(lateness(Run().finish()))
