from collections.abc import Callable
from dataclasses import replace

import pytest

from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.observed.run_log import ProcessSeen
from evenkeel.demo.observed.truths import TruthKind
from evenkeel.demo.report.expectations import expectations_of
from evenkeel.history.vocabulary import VerdictKind
from tests.unit.demo.synthetic_run import Run, whole_run


def broken(seen: Observations) -> list[str]:
    return [expectation.name for expectation in expectations_of(seen) if not expectation.held]


def test_everything_holds_when_all_goes_well() -> None:
    assert broken(whole_run().finish()) == []


def accuse_a_healthy_rank(run: Run) -> None:
    run.verdict(VerdictKind.COMPUTE_SLOW, 5, 0.8)


def time_out_a_step(run: Run) -> None:
    run.step(1, missing=("a verdict that rank 3 is compute slow",))


def lose_a_survivor(run: Run) -> None:
    run.log.add_process(
        ProcessSeen(kind="died", rank=2, incarnation=0, at=run.now, received_at=run.now, detail="SIGSEGV")
    )


def diverge(run: Run) -> None:
    run.reference[50] *= 1 + 2e-5


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (accuse_a_healthy_rank, "no verdict accuses a healthy rank"),
        (time_out_a_step, "scenario: a stretch of unusually long documents"),
        (lose_a_survivor, "the survivors go on in place"),
        (diverge, "the loss is that of the failure-free run"),
    ],
)
def test_each_fault_breaks_its_own_expectation_only(fault: Callable[[Run], None], part: str) -> None:
    run = whole_run()
    fault(run)
    names = broken(run.finish())
    assert len(names) == 1
    assert names[0].startswith(part)


def test_a_severity_that_is_off_by_a_fifth_does_not_hold() -> None:
    run = Run()
    run.train(45)
    run.truth(TruthKind.COMPUTE_SLOW, 3, 0.5)
    run.train(3)
    run.verdict(VerdictKind.COMPUTE_SLOW, 3, 0.6)
    run.plan(predicted=0.55, bound=7.5 / 8, gain=0.9)
    run.train(5)
    assert "severity of rank 3 is within 10% of the truth" in broken(run.finish())


def test_a_plan_that_wins_nothing_does_not_hold() -> None:
    run = Run()
    run.train(45)
    run.truth(TruthKind.COMPUTE_SLOW, 3, 0.5)
    run.train(3)
    run.verdict(VerdictKind.COMPUTE_SLOW, 3, 0.5)
    run.plan(predicted=0.55, bound=7.5 / 8, gain=-0.1)
    run.train(5)
    assert "faster under the plan for compute slow of rank 3 than under the failure" in broken(run.finish())


def test_a_rejoin_that_stops_the_survivors_for_two_iterations_does_not_hold() -> None:
    run = Run()
    run.train(45)
    run.truth(TruthKind.FAIL_STOP, 6, 0.0)
    run.plan(predicted=0.6, bound=7 / 8, gain=1.0)
    run.train(10)
    run.incarnations[6] = 1
    run.truth(TruthKind.REJOINED, 6, 1.0)
    run.plan(predicted=0.5, bound=1.0, gain=0.0)
    run.train(1, pause_seconds=1.2)
    run.train(3)
    assert "the survivors were held up by at most one iteration at the rejoin" in broken(run.finish())


def test_training_that_crawls_while_the_detector_is_away_noticed_it() -> None:
    run = Run()
    run.train(45)
    run.truth(TruthKind.DETECTOR_KILLED)
    run.speeds = [0.6] * 8
    run.train(5)
    assert "training does not notice that the detector was killed" in broken(run.finish())


def test_history_with_a_hole_a_missing_verdict_and_a_missing_plan_state_does_not_hold() -> None:
    seen = whole_run().finish()
    assert seen.history is not None
    first, *rest = seen.history.rollups
    lame = replace(
        seen.history,
        rollups=(replace(first, num_iterations=first.num_iterations - 2), *rest),
        verdict_ids=frozenset(sorted(seen.history.verdict_ids)[1:]),
        plan_states=frozenset(sorted(seen.history.plan_states)[1:]),
    )
    assert broken(replace(seen, history=lame)) == [
        "verdicts in SQL are those on Kafka",
        "plans in SQL are those on Kafka, in every state",
        "no hole in the history: every iteration of every rank is in a rollup",
    ]
    assert broken(replace(seen, history=None)) == ["the history can be read back by SQL"]


def test_nothing_holds_by_silence() -> None:
    names = broken(Run().finish())
    assert "no sample is lost or repeated" in names
    assert "the loss falls" in names
    assert "no hole in the history: every iteration of every rank is in a rollup" in names
