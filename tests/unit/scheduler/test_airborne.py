"""A plan that is taken back though recording it failed."""

import asyncio
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from benchmarks.planning.small_jobs import gpt
from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import uniform_layout
from evenkeel.services.common.database import create_engine
from evenkeel.services.scheduler.adapters.store import Store
from evenkeel.services.scheduler.airborne import Airborne, NotProposedError
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import Reshape
from evenkeel.services.scheduler.dispatch.two_phase import Flight
from evenkeel.services.scheduler.domain.job_state import PlanInFlight
from evenkeel.services.scheduler.job_tasks import JobTasks
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.news import Newsroom
from evenkeel.services.scheduler.plan_log import PlanLog

LAYOUT = uniform_layout(num_blocks=4, tensor=1, pipeline=1, data=2, num_micro_batches=2)
RECORD = PlanRecord(
    plan_id="p1",
    job_id="job",
    incident_id=None,
    mode=PlanMode.RECOVER,
    epoch=1,
    layout=LAYOUT,
    actions=(),
    alternatives=(),
    idle_seconds=0.0,
    predicted_seconds=0.0,
    cost_seconds=0.0,
    proportional_bound=1.0,
    reason="",
    solve_seconds=0.0,
    proposed_at=datetime(2026, 1, 1, tzinfo=UTC),
)
IN_FLIGHT = PlanInFlight(
    plan_id="p1", mode=PlanMode.RECOVER, epoch=1, layout=LAYOUT, incident_id=None, started_at_unix_seconds=0.0
)


async def refused() -> None:
    raise KeyError("job")


@pytest.mark.asyncio
async def test_whoever_takes_it_back_is_told_so_and_is_not_cancelled() -> None:
    reshape = Reshape(job_id="job", plan_id="p1", epoch=1, mode=PlanMode.RECOVER, to_layout=LAYOUT)
    flight = Flight(
        reshape=reshape,
        model=gpt(2),
        epoch=0,
        layout=LAYOUT,
        layouts={0: LAYOUT},
        calls={},
        board=StateBoard(),
        spawn=asyncio.create_task,
    )
    nowhere = Store(create_engine("postgresql://nobody@localhost:1/none", application_name="test"))
    log = PlanLog(nowhere, SchedulerMetrics(CollectorRegistry()), Newsroom(), lambda: 0.0)
    async with asyncio.TaskGroup() as group:
        tasks = JobTasks(group.create_task, lambda doing, error: None)
        airborne = Airborne(IN_FLIGHT, RECORD, flight, log, participants=[], proposal=tasks.spawn(refused()))
        with pytest.raises(NotProposedError):
            await airborne.ground("somebody it counts on is gone")
