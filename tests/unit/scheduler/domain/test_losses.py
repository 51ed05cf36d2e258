"""What incidents cost: each second once, told as it grows, never the same twice, and in few rows."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.history.records import CulpritRecord, IncidentEventRecord
from evenkeel.history.vocabulary import IncidentEventKind, VerdictKind
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.losses import all_accounts, due_accounts, with_loss, with_standstill
from evenkeel.services.scheduler.domain.parts import OpenIncident
from evenkeel.services.scheduler.domain.transitions import on_applied, on_verdict
from tests.unit.scheduler.domain.test_transitions import START, fresh_job, verdict
from tests.unit.scheduler.domain.test_transitions import in_flight as plan_in_flight

SLOW = OpenIncident(
    incident_id="slow",
    kind=VerdictKind.COMPUTE_SLOW,
    culprits=(CulpritRecord(rank=3, incarnation=0, node="n", device="d3"),),
    throughput=0.5,
    opened_at=START,
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def in_flight(known: JobKnowledge, *, epoch: int = 1, started: float = 0.0) -> JobKnowledge:
    """The job with a recovery under way; its layout is the one in force: what matters here is when it is applied."""
    flight = plan_in_flight(epoch, known.layout, incident_id=known.cause, at=at(started))
    return replace(known, flight=flight, top_epoch=epoch)


def applied(known: JobKnowledge, seconds: float) -> tuple[JobKnowledge, list[IncidentEventRecord]]:
    outcome = on_applied(known, first_iteration=50, at=at(seconds))
    return outcome.job, [one for one in outcome.records if isinstance(one, IncidentEventRecord)]


def test_a_loss_is_told_from_a_second_on_and_then_whenever_it_has_grown_by_a_tenth() -> None:
    known, told = replace(fresh_job(), incidents=(SLOW,)), list[tuple[str, float | None]]()
    for iteration in range(4_000):
        known, events = due_accounts(replace(known, iteration=iteration), START)
        for event in events:
            assert (event.kind, event.incident_id) == (IncidentEventKind.LOSS, "slow")
            told.append((event.reference, event.lost_seconds))
        known = with_loss(known, "slow", 0.25)
    assert told[:2] == [("4", 1.0), ("5", 1.25)]
    assert 1_000 / 1.1 < (told[-1][1] or 0.0) < 1_000
    assert len(told) < 75


def test_each_incident_has_its_own_account_and_one_without_loss_none() -> None:
    two = replace(
        fresh_job(), incidents=(replace(SLOW, lost_seconds=9.0), replace(SLOW, incident_id="new")), iteration=7
    )
    known, events = due_accounts(two, START)
    assert [event.incident_id for event in events] == ["slow"]
    assert due_accounts(known, START) == (known, [])
    assert all_accounts(known, START, reference="plan") == (known, [])


def test_a_standstill_is_charged_from_the_death_until_the_plan_runs_and_told_under_the_plan() -> None:
    known, events = applied(
        in_flight(on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 2, after=10.0)).job, started=11.0), 14
    )
    assert [one.lost_seconds for one in known.incidents] == [4.0]
    assert [(one.reference, one.lost_seconds) for one in events] == [("p1", 4.0)]
    assert due_accounts(known, at(14)) == (known, [])


def test_a_death_that_is_dated_before_the_layout_ran_costs_no_standstill_that_anybody_knows() -> None:
    dead = on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 2, after=10.0)).job
    later = replace(dead, running_since_unix_seconds=at(20.0).timestamp())
    assert with_standstill(later, at(60.0)) == later


def test_whole_replicas_stand_still_for_nobody() -> None:
    dead = on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 2, after=10.0)).job
    whole = replace(dead, layouts={0: replace(dead.home, whole=True)})
    assert with_standstill(whole, at(60.0)) == whole
    assert with_standstill(dead, at(60.0)) != dead


def test_two_deaths_before_a_plan_runs_share_the_standstill_without_a_gap_or_an_overlap() -> None:
    known = on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 2, after=10.0)).job
    known = on_verdict(in_flight(known), verdict(VerdictKind.HANG, 5, after=13.0)).job
    known, _ = applied(in_flight(known, epoch=2), 20.0)
    assert [one.lost_seconds for one in known.incidents] == [3.0, 7.0]


def test_only_whom_the_layout_counts_on_holds_it_up_and_only_since_it_was_seen_to_run() -> None:
    known = on_verdict(fresh_job(), verdict(VerdictKind.FAIL_STOP, 2, after=10.0)).job
    known, _ = applied(in_flight(known), 12.0)
    spare = CulpritRecord(rank=99, incarnation=0, node="n", device="spare")
    unused = replace(SLOW, incident_id="spare", kind=VerdictKind.FAIL_STOP, opened_at=at(15), culprits=(spare,))
    known = replace(known, incidents=(*known.incidents, unused))
    known, _ = applied(in_flight(on_verdict(known, verdict(VerdictKind.FAIL_STOP, 5, after=30.0)).job, epoch=2), 31.0)
    assert [one.lost_seconds for one in known.incidents] == [2.0, 0.0, 1.0]


def test_a_plan_that_had_to_be_replaced_though_nobody_died_is_charged_to_its_incident() -> None:
    known = replace(fresh_job(), incidents=(SLOW,), cause="slow", running_since_unix_seconds=at(5).timestamp())
    known, _ = applied(in_flight(known, started=7.0), 9.0)
    assert [one.lost_seconds for one in known.incidents] == [2.0]


_STEPS = st.lists(st.tuples(st.sampled_from(["death", "applied", "profile", "restart"]), st.floats(0.01, 9.0)))


@given(_STEPS)
def test_whatever_happens_losses_are_the_time_that_was_lost_and_the_history_is_told_all_of_it(
    steps: list[tuple[str, float]],
) -> None:
    known, now, stands_since, lost = fresh_job(), 0.0, None, 0.0
    history: dict[str, dict[str, float]] = {}
    ranks = list(known.layout.ranks)

    def tell(events: list[IncidentEventRecord]) -> None:
        for event in events:
            assert event.reference not in history.setdefault(event.incident_id, {}), "the history drops it"
            history[event.incident_id][event.reference] = event.lost_seconds or 0.0

    for number, (what, seconds) in enumerate(steps):
        now += seconds
        if what == "death" and ranks:
            stands_since = now if stands_since is None else stands_since
            known = on_verdict(known, verdict(VerdictKind.FAIL_STOP, ranks.pop(), after=now)).job
        elif what == "applied" and stands_since is not None:
            lost += now - stands_since
            stands_since = None
            known, events = applied(in_flight(known, epoch=known.top_epoch + 1), now)
            tell(events)
        elif what == "profile" and stands_since is None and known.incidents:
            lost += seconds
            known, events = due_accounts(replace(with_loss(known, None, seconds), iteration=number), at(now))
            tell(events)
        elif what == "restart":
            told = {one: max(accounts.values()) for one, accounts in history.items()}
            assert all(told.get(i.incident_id, 0.0) == pytest.approx(i.told_seconds) for i in known.incidents)
    known = with_standstill(known, at(now)) if stands_since is not None else known
    lost += now - stands_since if stands_since is not None else 0.0
    # Times go through datetimes, which have microseconds.
    assert sum(one.lost_seconds for one in known.incidents) == pytest.approx(lost, abs=1e-4)
