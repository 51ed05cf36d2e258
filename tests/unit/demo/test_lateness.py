import math

import pytest

from evenkeel.demo.observed.lateness import ON_TIME, lateness, lateness_during
from evenkeel.demo.observed.truths import TruthKind
from evenkeel.demo.report.expectations import expectations_of
from evenkeel.demo.report.summary import false_verdicts
from evenkeel.history.vocabulary import VerdictKind
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


def test_one_device_that_is_held_up_for_a_while_makes_that_while_late_and_no_other() -> None:
    run = Run()
    run.train(40)
    run.held_up[5] = 1.2
    run.train(4)
    del run.held_up[5]
    run.train(20)
    seen = run.finish()
    assert lateness(seen) < ON_TIME
    assert lateness_during(seen, range(35, 50)) == pytest.approx(1.2, abs=0.03)
    assert lateness_during(seen, range(40)) < ON_TIME
    assert lateness_during(seen, range(50, 64)) < ON_TIME


def test_a_device_that_was_slowed_on_purpose_is_on_time() -> None:
    seen = whole_run().finish()
    assert lateness_during(seen, range(seen.log.last_iteration)) == pytest.approx(1.0, abs=0.03)


def held_up_run(claimed: float) -> Run:
    """Rank 5 is held up by a fifth and called slow, before anything is done to anybody; it recovers."""
    run = Run()
    run.train(40)
    run.held_up[5] = 1.25
    run.verdict(VerdictKind.COMPUTE_SLOW, 5, claimed)
    run.train(1)
    del run.held_up[5]
    run.plan(predicted=0.5, bound=1.0, gain=0.0)
    run.train(8)
    run.verdict(VerdictKind.RECOVERED, 5, 1.0)
    run.train(2)
    return run


def quiet_while_healthy(run: Run) -> list[bool]:
    return [one.held for one in expectations_of(run.finish()) if "everybody is healthy" in one.name]


def test_a_verdict_and_a_plan_for_a_device_that_this_machine_held_up_are_in_order() -> None:
    run = held_up_run(claimed=0.8)
    assert false_verdicts(run.finish()) == ()
    assert quiet_while_healthy(run) == [True]


def test_a_verdict_that_says_more_than_this_machine_did_is_false() -> None:
    run = held_up_run(claimed=0.4)
    assert [one.kind for one in false_verdicts(run.finish())] == [VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED]
    assert quiet_while_healthy(run) == [False]
