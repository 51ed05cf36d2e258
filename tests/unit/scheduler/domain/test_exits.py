"""An error of the program is an incident of its own kind, whoever is heard first."""

from dataclasses import replace
from datetime import timedelta

import pytest

from evenkeel.history.records import CulpritRecord, RankExitRecord, VerdictRecord
from evenkeel.history.vocabulary import IncidentEventKind, VerdictKind
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.services.scheduler.domain.advice import advice_on
from evenkeel.services.scheduler.domain.exits import on_exits
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.standing import standing
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason
from evenkeel.services.scheduler.domain.transitions import on_verdict
from tests.unit.scheduler.domain.test_standing import AT, exit_of, job

LINE = "ZeroDivisionError: division by zero"


def death(rank: int) -> VerdictRecord:
    return VerdictRecord(
        verdict_id=f"death-{rank}",
        job_id="j",
        kind=VerdictKind.FAIL_STOP,
        culprits=(CulpritRecord(rank=rank, incarnation=0, node="n", device=f"gpu-{rank}"),),
        throughput=0.0,
        throughput_margin=0.0,
        confidence=1.0,
        first_iteration=1,
        decided_iteration=1,
        decided_at=AT,
    )


def told(known: JobKnowledge, *exits: RankExitRecord) -> JobKnowledge:
    """The job after a report and the verdict that it amounts to."""
    known, _, verdict = on_exits(known, exits, AT)
    return known if verdict is None else on_verdict(known, verdict).job


def test_an_error_on_all_ranks_is_one_incident_of_the_program() -> None:
    known = told(job(), *(exit_of(rank, last_line=LINE) for rank in range(4)))
    (incident,) = known.incidents
    assert (incident.kind, [culprit.rank for culprit in incident.culprits]) == (VerdictKind.PROGRAM_ERROR, [0, 1, 2, 3])
    assert not any(info.alive for info in known.ranks.values())
    again, records, verdict = on_exits(known, [exit_of(2, last_line=LINE)], AT + timedelta(seconds=1))
    assert (again, records, verdict) == (known, [], None)


def test_the_detectors_word_comes_later_and_opens_nothing() -> None:
    known = told(job(), exit_of(1, last_line=LINE))
    outcome = on_verdict(known, death(1))
    assert [incident.kind for incident in outcome.job.incidents] == [VerdictKind.PROGRAM_ERROR]
    assert [record.incident_id for record in outcome.records] == [known.incidents[0].incident_id]


def test_the_detectors_word_comes_first_and_its_incident_changes_its_kind() -> None:
    known = on_verdict(job(), death(1)).job
    assert [incident.kind for incident in known.incidents] == [VerdictKind.FAIL_STOP]
    known, records, verdict = on_exits(known, [exit_of(1, last_line=LINE)], AT)
    assert verdict is None
    assert [(record.kind, record.reference, record.detail) for record in records] == [
        (IncidentEventKind.CAUSE, VerdictKind.PROGRAM_ERROR, LINE)
    ]
    assert [incident.kind for incident in known.incidents] == [VerdictKind.PROGRAM_ERROR]


@pytest.mark.parametrize(
    "how",
    [{"signal": 9, "code": 0}, {"code": 1}, {"last_line": "ConnectionResetError: gone", "lost_peer": True}],
    ids=["killed", "ended without a word", "the victim of a peer"],
)
def test_other_ends_are_left_to_the_detector(how: dict[str, object]) -> None:
    known, records, verdict = on_exits(job(), [exit_of(1, **how)], AT)
    assert (records, verdict) == ([], None)
    assert known.ranks[1].alive
    assert (1, 0) in known.exits


def test_the_end_of_an_earlier_process_accuses_nobody() -> None:
    known = job()
    known = known.with_rank(replace(known.ranks[1], incarnation=2))
    assert on_exits(known, [exit_of(1, last_line=LINE)], AT)[2] is None


def test_nobody_is_told_to_replace_a_device_for_an_error_of_the_program() -> None:
    known = job()
    loop = replace(known, ranks={rank: replace(info, can_reshape=False) for rank, info in known.ranks.items()})
    loop = told(loop, *(exit_of(rank, last_line=LINE) for rank in range(4)))
    advice = advice_on(loop, loop.situation(TransitionCosts()), 0.02)
    assert advice is not None
    assert advice.text == (
        f"Ranks 0, 1, 2, 3 ended by an error of the program: {LINE}. No device is at fault: repair the program and "
        "start the job again."
    )


def test_what_took_the_ranks_away_is_said_where_nothing_is_left() -> None:
    known = told(job(), *(exit_of(rank, last_line=LINE) for rank in range(4)))
    known = replace(known, stuck=Stuck(reason=StuckReason.NO_LAYOUT, detail="nobody is left", since=AT))
    assert f"nobody is left; the program raised {LINE};" in standing(known, {}).summary
