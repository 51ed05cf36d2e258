"""Replicas that live and do not go on, or end by a fault of their own."""

import os
import signal
from collections.abc import Callable

import pytest

from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED
from tests.integration.replicas.crew import NUM_STEPS, Crew, Fate, Report

pytestmark = pytest.mark.integration


def check(crew: Crew, failure_free: Report, survivors: tuple[int, ...]) -> None:
    for each in survivors:
        report = crew.reports[each]
        assert report.status == 0, report
        assert len(report.losses) == NUM_STEPS
        for step, loss in report.losses.items():
            assert loss == pytest.approx(failure_free.losses[step], rel=1e-5)


@pytest.mark.parametrize("moment", ["backward", "exchange", "voted", "border"])
def test_the_others_go_on_without_one_that_hangs(
    start_crew: Callable[..., Crew], failure_free: Report, moment: str
) -> None:
    crew = start_crew(3, {1: Fate(moment=moment, what=signal.SIGSTOP)}, hang_seconds=3.0)
    crew.finish(but=[1])
    check(crew, failure_free, (0, 2))
    os.kill(crew.pids[1], signal.SIGCONT)
    crew.finish()
    assert crew.reports[1].status == EXIT_EVICTED, "it hears that the others have gone on"


@pytest.mark.parametrize("moment", ["backward", "exchange", "voted", "border"])
def test_one_that_fails_by_itself_is_gone(start_crew: Callable[..., Crew], failure_free: Report, moment: str) -> None:
    crew = start_crew(3, {1: Fate(moment=moment, what=0)})
    crew.finish()
    assert "fault of the user" in crew.reports[1].error
    check(crew, failure_free, (0, 2))


def test_the_store_dies_and_then_a_replica(start_crew: Callable[..., Crew], failure_free: Report) -> None:
    crew = start_crew(3, {1: Fate(moment="border", step=7)}, pause_seconds=0.05)
    crew.until(lambda: 1 in crew.reports[0].losses, "a step")
    crew.store.kill()
    crew.finish()
    assert crew.reports[1].status == -signal.SIGKILL
    check(crew, failure_free, (0, 2))
