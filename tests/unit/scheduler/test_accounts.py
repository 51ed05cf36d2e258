"""What an open incident has cost is told as it grows: soon, never the same twice, and in few rows."""

from dataclasses import replace
from datetime import UTC, datetime

from history.records import CulpritRecord
from history.vocabulary import IncidentEventKind, VerdictKind
from services.scheduler.accounts import LossAccounts
from services.scheduler.domain.job_state import OpenIncident
from tests.unit.scheduler.test_restart import job

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SLOW = OpenIncident(
    incident_id="slow",
    kind=VerdictKind.COMPUTE_SLOW,
    culprits=(CulpritRecord(rank=3, incarnation=0, node="n", device="d3"),),
    throughput=0.5,
    opened_at=NOW,
)


def test_a_loss_is_told_from_a_second_on_and_then_whenever_it_has_grown_by_a_tenth() -> None:
    accounts, told = LossAccounts(), list[tuple[str, float | None]]()
    known = job()
    for iteration in range(4_000):
        incident = replace(SLOW, lost_seconds=0.25 * iteration)
        for event in accounts.due(replace(known, incidents=(incident,), iteration=iteration), NOW):
            assert (event.kind, event.incident_id) == (IncidentEventKind.LOSS, "slow")
            told.append((event.reference, event.lost_seconds))
    assert told[:2] == [("4", 1.0), ("5", 1.25)]
    assert 1_000 / 1.1 < (told[-1][1] or 0.0) < 1_000
    assert len(told) < 75


def test_each_incident_has_its_own_account_and_one_without_loss_none() -> None:
    accounts = LossAccounts()
    two = replace(job(), incidents=(replace(SLOW, lost_seconds=9.0), replace(SLOW, incident_id="new")), iteration=7)
    assert [event.incident_id for event in accounts.due(two, NOW)] == ["slow"]
    assert accounts.due(two, NOW) == []
