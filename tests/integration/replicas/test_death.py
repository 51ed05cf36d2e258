"""Replicas that die at any moment: the others go on with the same samples and the same loss."""

import signal
from collections.abc import Callable

import pytest

from tests.integration.replicas.crew import NUM_MICRO_BATCHES, NUM_STEPS, Crew, Fate, Report

pytestmark = pytest.mark.integration

MOMENTS = ("backward", "exchange", "voted", "border")


def check(crew: Crew, failure_free: Report, survivors: tuple[int, ...]) -> None:
    for each in survivors:
        report = crew.reports[each]
        assert report.status == 0, report
        assert len(report.losses) == NUM_STEPS
        for step, loss in report.losses.items():
            assert loss == pytest.approx(failure_free.losses[step], rel=1e-5)
        assert report.weights == pytest.approx(failure_free.weights, rel=1e-3, abs=1e-5)
    for step in range(NUM_STEPS):
        ran = [index for each in survivors for index in crew.reports[each].ran[step]]
        assert len(ran) == len(set(ran)), f"step {step}: {ran}"


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_replicas_train_like_one_process(
    start_crew: Callable[..., Crew], failure_free: Report, num_replicas: int
) -> None:
    crew = start_crew(num_replicas)
    crew.finish()
    check(crew, failure_free, tuple(range(num_replicas)))
    for step in range(NUM_STEPS):
        ran = sorted(index for report in crew.reports.values() for index in report.ran[step])
        assert ran == list(range(NUM_MICRO_BATCHES))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_replica_dies(start_crew: Callable[..., Crew], failure_free: Report, moment: str) -> None:
    crew = start_crew(3, {1: Fate(moment=moment)})
    crew.finish()
    assert crew.reports[1].status == -signal.SIGKILL
    check(crew, failure_free, (0, 2))


@pytest.mark.parametrize("moment", MOMENTS)
def test_all_but_one_die_at_once(start_crew: Callable[..., Crew], failure_free: Report, moment: str) -> None:
    crew = start_crew(3, {0: Fate(moment=moment), 1: Fate(moment=moment)})
    crew.finish()
    assert [crew.reports[each].status for each in (0, 1)] == [-signal.SIGKILL] * 2
    check(crew, failure_free, (2,))


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_dies_while_the_others_recover(start_crew: Callable[..., Crew], failure_free: Report, moment: str) -> None:
    crew = start_crew(4, {1: Fate(moment=moment), 2: Fate(moment="meeting")})
    crew.finish()
    assert crew.reports[2].status == -signal.SIGKILL
    check(crew, failure_free, (0, 3))


def test_when_all_are_dead_the_job_begins_anew(start_crew: Callable[..., Crew], failure_free: Report) -> None:
    crew = start_crew(2, {0: Fate(moment="backward"), 1: Fate(moment="exchange")})
    crew.finish()
    assert [crew.reports[each].status for each in (0, 1)] == [-signal.SIGKILL] * 2
    for replica in (0, 1):
        crew.start(replica)
    crew.finish()
    check(crew, failure_free, (0, 1))
