"""What tasks of one job raise: told where it is the job's alone, and the service's where it is not."""

import asyncio

import pytest
from sqlalchemy.exc import OperationalError

from evenkeel.history.errors import DeposedError
from evenkeel.services.common.postgres.database import DatabaseAwayError
from evenkeel.services.scheduler.serving.job_tasks import JobTasks

pytestmark = pytest.mark.asyncio


async def trip(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def wait() -> None:
    await asyncio.Event().wait()


async def test_a_task_that_fails_is_told_and_ends_as_cancelled_while_the_others_go_on() -> None:
    told: list[Exception] = []
    error, go_on = KeyError(3), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = JobTasks(group.create_task, told.append)
        other = group.create_task(asyncio.wait_for(go_on.wait(), 60))
        failed = tasks.spawn(trip(error))
        await asyncio.wait([failed])
        assert failed.cancelled()
        assert not other.done()
        go_on.set()
    assert told == [error]


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("SELECT 1", {}, Exception("server closed the connection")),
        DatabaseAwayError("no answer in time"),
        DeposedError("scheduler", 1),
    ],
)
async def test_a_database_that_is_away_and_a_lost_place_end_the_service_as_before(error: Exception) -> None:
    told: list[Exception] = []
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            JobTasks(group.create_task, told.append).spawn(trip(error))
    assert raised.value.exceptions == (error,)
    assert not told


@pytest.mark.parametrize("error", [TimeoutError("a wait of the job's own"), OSError("a file, a socket")])
async def test_a_time_limit_or_a_socket_of_one_job_is_not_the_database_s(error: Exception) -> None:
    told: list[Exception] = []
    async with asyncio.TaskGroup() as group:
        JobTasks(group.create_task, told.append).spawn(trip(error))
    assert told == [error]


async def test_the_end_of_all_tasks_waits_for_them_and_tells_nobody_what_they_raise_on_the_way() -> None:
    told: list[Exception] = []
    ended = []

    async def stumbles() -> None:
        try:
            await wait()
        finally:
            ended.append(True)
            raise KeyError(3)

    async with asyncio.TaskGroup() as group:
        tasks = JobTasks(group.create_task, told.append)
        spawned = [tasks.spawn(stumbles()), tasks.spawn(wait())]
        await asyncio.sleep(0)
        never_began = tasks.spawn(wait())
        await tasks.end()
        assert all(task.cancelled() for task in (*spawned, never_began))
    assert ended == [True]
    assert not told


async def test_a_cancelled_task_is_no_failure() -> None:
    told: list[Exception] = []
    async with asyncio.TaskGroup() as group:
        task = JobTasks(group.create_task, told.append).spawn(wait())
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert not told
