"""How often a job that fails again and again begins anew."""

import pytest
from prometheus_client import CollectorRegistry

from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.renewals import FIRST_SECONDS, LONGEST_SECONDS, QUIET_SECONDS, Renewals


class Failing:
    """A job's renewals on a clock of their own, without chance."""

    def __init__(self) -> None:
        self.now_seconds = 1000.0
        self.registry = CollectorRegistry()
        backoff = Backoff(first_seconds=FIRST_SECONDS, longest_seconds=LONGEST_SECONDS, uniform=lambda _, most: most)
        failures = SchedulerMetrics(self.registry).failures
        self.renewals = Renewals("job", failures, clock=lambda: self.now_seconds, backoff=backoff)

    def pause(self, *, after_seconds: float = 1.0, where: str = "task") -> float:
        self.now_seconds += after_seconds
        self.renewals.failed(where, "work", KeyError(3))
        return self.renewals.pause_seconds()


def test_pauses_double_from_a_fifth_of_a_second_to_five_minutes() -> None:
    failing = Failing()
    pauses = [failing.pause() for _ in range(14)]
    assert pauses == pytest.approx([min(0.2 * 2**each, 300.0) for each in range(14)])


def test_pauses_are_forgotten_after_a_quiet_time_that_is_longer_than_any_of_them() -> None:
    failing = Failing()
    for _ in range(14):
        last = failing.pause()
    assert failing.pause(after_seconds=last + 1.0) == last, "it failed as soon as it had begun anew"
    assert failing.pause(after_seconds=QUIET_SECONDS + 1.0) == FIRST_SECONDS


def test_two_failures_before_the_job_began_anew_make_one_pause_and_count_twice() -> None:
    failing = Failing()
    failing.renewals.failed("verdict", "work", KeyError(3))
    assert failing.pause(where="task") == FIRST_SECONDS
    counted = [
        failing.registry.get_sample_value("evenkeel_scheduler_failures_total", {"where": where})
        for where in ("verdict", "task", "profile")
    ]
    assert counted == [1.0, 1.0, None]


def test_the_pauses_of_the_service_are_at_most_the_longest_and_never_none() -> None:
    renewals = Renewals("job", SchedulerMetrics(CollectorRegistry()).failures)
    pauses = [renewals.pause_seconds() for _ in range(20)]
    assert min(pauses) >= FIRST_SECONDS / 2
    assert max(pauses) <= LONGEST_SECONDS
