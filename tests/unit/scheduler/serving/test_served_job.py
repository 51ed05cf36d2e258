"""How often a job that fails again and again begins anew."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.served_job import FIRST_SECONDS, LONGEST_SECONDS, QUIET_SECONDS, ServedJob

pytestmark = pytest.mark.asyncio


class Failing:
    """A job that fails, on a clock of its own, without chance."""

    def __init__(self) -> None:
        self.now_seconds = 1000.0
        self.registry = CollectorRegistry()
        parts: Any = SimpleNamespace(metrics=SchedulerMetrics(self.registry), clock=lambda: self.now_seconds)
        self.job = ServedJob("job", parts, lambda _: None)
        self.job._pauses = Backoff(
            first_seconds=FIRST_SECONDS, longest_seconds=LONGEST_SECONDS, uniform=lambda _, most: most
        )

    def pause(self, *, after_seconds: float = 1.0) -> float:
        self.now_seconds += after_seconds
        self.job.is_ready = True
        self.job._failed(KeyError(3))
        return self.job._pauses.next_seconds()


async def test_pauses_double_from_a_fifth_of_a_second_to_five_minutes() -> None:
    failing = Failing()
    pauses = [failing.pause() for _ in range(14)]
    assert pauses == pytest.approx([min(0.2 * 2**each, 300.0) for each in range(14)])


async def test_pauses_are_forgotten_after_a_quiet_time_that_is_longer_than_any_of_them() -> None:
    failing = Failing()
    for _ in range(14):
        last = failing.pause()
    assert failing.pause(after_seconds=last + 1.0) == last, "it failed as soon as it had begun anew"
    assert failing.pause(after_seconds=QUIET_SECONDS + 1.0) == FIRST_SECONDS


async def test_what_fails_while_the_job_ends_already_is_one_failure() -> None:
    failing = Failing()
    failing.job.is_ready = True
    failing.job._failed(KeyError(3), "verdict")
    failing.job._failed(KeyError(3))
    counted = [
        failing.registry.get_sample_value("evenkeel_scheduler_failures_total", {"where": where})
        for where in ("verdict", "task")
    ]
    assert counted == [1.0, None]


async def test_the_pauses_of_the_service_are_at_most_the_longest_and_never_none() -> None:
    parts: Any = SimpleNamespace(clock=lambda: 0.0)
    job = ServedJob("job", parts, lambda _: None)
    pauses = [job._pauses.next_seconds() for _ in range(20)]
    assert min(pauses) >= FIRST_SECONDS / 2
    assert max(pauses) <= LONGEST_SECONDS
