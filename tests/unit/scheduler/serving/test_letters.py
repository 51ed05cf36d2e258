"""What waits for a job's writer: in order, verdicts together, and what made the job fail alone."""

from datetime import UTC, datetime

import pytest

from benchmarks.planning.solver.small_jobs import WORKLOAD
from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history.records import VerdictRecord
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.serving.letters import Letter, Letters, joined

pytestmark = pytest.mark.asyncio


def verdict(name: str) -> events.VerdictsTaken:
    one = VerdictRecord(
        verdict_id=name,
        job_id="job",
        kind="hang",
        culprits=(),
        throughput=0.0,
        throughput_margin=0.0,
        confidence=1.0,
        first_iteration=1,
        decided_iteration=1,
        decided_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return events.VerdictsTaken((one,))


def profile() -> events.Event:
    return JobProfile(job_id="job", iteration=1, epoch=0, workload=WORKLOAD, iteration_seconds=1.0, throughputs={})


def suspicion() -> events.Event:
    return Suspicion(
        job_id="job", rank=0, incarnation=0, peer_rank=1, peer_incarnation=0, iteration=1, at_unix_seconds=0.0
    )


def ids(batch: list[Letter]) -> list[str]:
    event = joined(batch)
    assert isinstance(event, events.VerdictsTaken)
    return [one.verdict_id for one in event.verdicts]


async def test_verdicts_that_wait_are_taken_together_and_those_at_which_the_job_failed_alone() -> None:
    letters = Letters()
    for name in "abc":
        letters.add(Letter(verdict(name), waits=True))
    letters.add(Letter(JobEnded(job_id="job"), waits=True))
    letters.add(Letter(verdict("d"), waits=True))
    first = letters.next()
    assert ids(first) == ["a", "b", "c"]
    for letter in reversed(first):
        letters.offer_again(letter)
    assert [ids(letters.next()) for _ in "abc"] == [["a"], ["b"], ["c"]]
    assert isinstance(joined(letters.next()), JobEnded)
    assert ids(letters.next()) == ["d"]
    assert letters.next() == []


async def test_a_later_profile_or_suspicion_takes_the_place_of_those_that_were_not_tried() -> None:
    letters = Letters()
    tried, needless = letters.add(Letter(profile(), waits=True)), Letter(profile(), waits=True)
    letters.offer_again(letters.next()[0])
    suspected = letters.add(Letter(suspicion(), waits=True))
    letters.add(needless)
    newest = letters.add(Letter(JobEnded(job_id="job"), waits=True))
    assert (needless.done.done(), suspected.done.done(), tried.done.done()) == (True, False, False)
    assert [letters.next() for _ in range(4)] == [[tried], [suspected], [newest], []]


async def test_what_was_given_up_before_its_turn_never_was() -> None:
    letters = Letters()
    given_up = letters.add(Letter(verdict("a"), waits=True))
    letters.add(Letter(verdict("b"), waits=True))
    given_up.done.cancel()
    assert ids(letters.next()) == ["b"]


async def test_who_waits_no_more_is_told_why() -> None:
    letters, error = Letters(), KeyError(3)
    asked, end = letters.add(Letter(events.Began(), is_asked=True)), letters.add(Letter(events.Finish()))
    letters.settle(lambda one: one.is_asked, error)
    assert asked.done.exception() is error
    assert letters.ends() == [end]
    assert letters.next() == [end]
