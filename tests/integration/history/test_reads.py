from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history import reads, writes
from evenkeel.history.records import CulpritRecord, IncidentEventRecord
from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanMode, PlanState, VerdictKind
from tests.integration.history.seed import (
    BERT_TOKEN,
    FULL,
    LLAMA_TOKEN,
    START,
    incident,
    job,
    plan,
    rank,
    verdict,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def test_pages_of_plans_add_up_to_all_of_them_newest_first(seeded: AsyncConnection) -> None:
    everything = [status.plan.plan_id for status in (await reads.list_plans(seeded)).items]

    paged = []
    token, pages = "", 0
    while True:
        page = await reads.list_plans(seeded, page_size=2, page_token=token)
        paged += [status.plan.plan_id for status in page.items]
        pages += 1
        token = page.next_page_token
        if not token:
            break

    assert everything == ["p5", "p4", "p3", "p2", "p1"]
    assert paged == everything
    assert pages == 3


async def test_an_incident_that_arrives_between_two_pages_repeats_and_hides_nothing(seeded: AsyncConnection) -> None:
    first = await reads.list_incidents(seeded, page_size=2)
    new = verdict("v9", VerdictKind.HANG, rank("llama", 1, START), START + timedelta(days=9), 700_000, 0.0)
    await writes.record_verdict(seeded, new)
    await writes.open_incident(seeded, incident("i9", new))

    second = await reads.list_incidents(seeded, page_size=10, page_token=first.next_page_token)

    assert [one.incident_id for one in first.items] == ["i4", "i3"]
    assert [one.incident_id for one in second.items] == ["i2", "bert-i1", "i1"]
    assert second.next_page_token == ""


async def test_items_of_the_same_moment_are_split_over_pages_without_loss(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))
    names = {f"p{number}" for number in range(5)}
    for name in names:
        await writes.record_plan(connection, plan(name, "", START, job_id="a", epoch=1, layout=FULL))

    seen: list[str] = []
    page = await reads.list_plans(connection, job_id="a", page_size=2)
    seen += [status.plan.plan_id for status in page.items]
    while page.next_page_token:
        page = await reads.list_plans(connection, job_id="a", page_size=2, page_token=page.next_page_token)
        seen += [status.plan.plan_id for status in page.items]

    assert sorted(seen) == sorted(names)


async def test_lists_can_be_of_one_job_only(seeded: AsyncConnection) -> None:
    incidents = await reads.list_incidents(seeded, job_id="bert")
    plans = await reads.list_plans(seeded, job_id="bert")
    verdicts = await reads.list_verdicts(seeded, job_id="bert")

    assert {one.job_id for one in verdicts.items} == {"bert"}
    assert [one.incident_id for one in incidents.items] == ["bert-i1"]
    assert plans.items == ()


async def test_jobs_are_listed_newest_first_with_their_newest_layout(seeded: AsyncConnection) -> None:
    jobs = (await reads.list_jobs(seeded)).items

    assert [(one.job_id, one.state, one.epoch) for one in jobs] == [
        ("llama", JobState.STUCK, 4),
        ("bert", JobState.FINISHED, 0),
    ]
    assert jobs[0].layout == FULL
    assert [(one.rank, one.incarnation) for one in jobs[0].ranks][2] == (2, 1)


async def test_a_plan_reads_back_as_it_was_written(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))
    written = plan("p1", "", START, job_id="a", epoch=1, layout=FULL, mode=PlanMode.RECOVER)
    await writes.record_plan(connection, written)

    known = await reads.get_plan(connection, "p1")

    assert known is not None
    assert known.plan.incident_id is None
    assert (known.plan.actions, known.plan.alternatives) == (written.actions, written.alternatives)
    assert (known.plan.layout, known.plan.mode, known.plan.proposed_at) == (FULL, PlanMode.RECOVER, START)
    assert (known.state, known.first_iteration, known.measured_seconds) == (PlanState.PROPOSED, None, None)


async def test_a_measured_plan_carries_what_its_events_brought(seeded: AsyncConnection) -> None:
    known = await reads.get_plan(seeded, "p1")

    assert known is not None
    assert (known.state, known.measured_seconds, known.first_iteration) == (PlanState.MEASURED, 1.29, 3604)
    assert known.decision == {"steps_applied": 3604}


async def test_an_incident_carries_its_newest_account_and_its_plans(seeded: AsyncConnection) -> None:
    known = await reads.get_incident(seeded, "i1")
    await writes.append_incident_event(
        seeded,
        IncidentEventRecord(
            incident_id="i4",
            kind=IncidentEventKind.VERDICT,
            reference="v10",
            at=START + timedelta(days=9),
            throughput=0.25,
        ),
    )
    newer = await reads.get_incident(seeded, "i4")

    assert known is not None
    assert newer is not None
    assert (known.lost_seconds, known.plan_ids) == (1620.0, ("p1", "p2"))
    assert [one.rank for one in known.culprits] == [5]
    assert known.resolved_at is not None
    assert (newer.throughput, newer.lost_seconds, newer.resolved_at) == (0.25, 10.0, None)


async def test_losses_of_incidents_nodes_and_jobs_add_up_to_the_same_whatever_clocks_said(
    seeded: AsyncConnection,
) -> None:
    ends = replace(
        verdict("v20", VerdictKind.COMMUNICATION_SLOW, rank("llama", 1, START), START + timedelta(days=9), 7, 0.5),
        culprits=(
            CulpritRecord(rank=1, incarnation=0, node="node-a", device="gpu1"),
            CulpritRecord(rank=5, incarnation=0, node="node-b", device="gpu1"),
        ),
    )
    await writes.record_verdict(seeded, ends)
    await writes.open_incident(seeded, incident("i20", ends))
    # The verdict that resolved it was decided before the account that the scheduler had told meanwhile.
    for kind, minutes, lost in ((IncidentEventKind.LOSS, 9, 30.0), (IncidentEventKind.RESOLVED, 5, 36.0)):
        at = ends.decided_at + timedelta(minutes=minutes)
        await writes.append_incident_event(
            seeded, IncidentEventRecord(incident_id="i20", kind=kind, reference="", at=at, lost_seconds=lost)
        )
    known = await reads.get_incident(seeded, "i20")
    assert known is not None
    assert known.lost_seconds == 36.0
    again = rank("llama", 5, ends.decided_at, incarnation=1)
    dead = verdict(
        "v21", VerdictKind.FAIL_STOP, rank("llama", 5, START), again.registered_at + timedelta(hours=1), 9, 0.0
    )
    await writes.register_ranks(seeded, [again])
    await writes.record_verdict(seeded, dead)
    replaced = text(
        "SELECT seconds_to_replacement FROM rank_incarnations WHERE job_id = 'llama' AND rank = 5 AND incarnation = 0"
    )
    assert await seeded.scalar(replaced) == 0.0
    by_node = await seeded.execute(
        text("SELECT node, incidents, lost_seconds FROM failures_by_node_week WHERE kind = 'communication_slow'")
    )
    assert sorted(tuple(row) for row in by_node) == [("node-a", 1, 18.0), ("node-b", 1, 18.0)]
    totals = [
        float(await seeded.scalar(text(f"SELECT sum(lost_seconds) FROM {view}")) or 0.0)
        for view in ("current_incidents", "lost_time_by_incident", "lost_time_by_job", "failures_by_node_week")
    ]
    assert totals == pytest.approx([1620.0 + 81.5 + 30.0 + 10.0 + 4.0 + 36.0] * 4)


async def test_a_job_that_ended_before_it_began_by_the_clocks_ran_for_no_time(seeded: AsyncConnection) -> None:
    await writes.register_job(seeded, job("hasty", "hasty-token-0123456789"))
    await writes.set_job_state(seeded, "hasty", JobState.FINISHED, START - timedelta(seconds=2))

    found = await seeded.execute(text("SELECT run_seconds, lost_part FROM lost_time_by_job WHERE job_id = 'hasty'"))

    assert tuple(found.one()) == (0.0, None)


async def test_what_does_not_exist_is_none(seeded: AsyncConnection) -> None:
    assert await reads.get_plan(seeded, "none") is None
    assert await reads.get_incident(seeded, "none") is None
    assert await reads.get_job(seeded, "none") is None
    assert await reads.job_token(seeded, "none") is None
    assert await reads.load_jobs(seeded, ["none"]) == {}


async def test_a_restart_finds_the_unfinished_jobs_with_all_that_is_open(seeded: AsyncConnection) -> None:
    at = START + timedelta(days=8, hours=7)
    await writes.record_plan(seeded, plan("p6", "i4", at, epoch=5, layout=FULL))
    state = WorkingStateRecord(job_id="llama", version=1, save_id="a", document={}, plan_ids=("p6",))
    await writes.save_working_states(seeded, [state])

    assert await reads.unfinished_jobs(seeded) == ["llama"]
    assert await reads.job_tokens(seeded) == {"llama": LLAMA_TOKEN}
    tokens = {"bert": BERT_TOKEN, "llama": LLAMA_TOKEN}
    assert await reads.job_tokens(seeded, ["llama", "none", "bert"]) == tokens
    assert await reads.job_tokens(seeded, []) == {}
    known, stranger = ("llama", 3, 0), ("llama", 3, 10**9)
    assert await reads.registered_processes(seeded, [known, stranger, ("none", 3, 0)]) == {known}
    loaded = (await reads.load_jobs(seeded, ["llama"]))["llama"]

    assert (loaded.record.job_id, loaded.record.job_token) == ("llama", LLAMA_TOKEN)
    assert loaded.record.layout == loaded.layouts[0]
    assert BERT_TOKEN not in repr(loaded)
    assert LLAMA_TOKEN not in repr(loaded)
    assert sorted(loaded.layouts) == [0, 1, 2, 3, 4]
    assert loaded.seen == {"v1", "v2", "v3", "v4", "v5", "v6"}
    assert [(one.plan.plan_id, one.state) for one in loaded.plans.values()] == [("p6", PlanState.PROPOSED)]
