import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest
import structlog
from aiokafka.errors import KafkaConnectionError
from sqlalchemy.exc import OperationalError

from evenkeel.services.common.backoff import Backoff, Reachability, persist
from evenkeel.services.common.health import Health, health_server
from evenkeel.services.common.lifecycle import run_service
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.common.settings import ServiceSettings

SETTINGS = ServiceSettings(kafka_bootstrap_servers="localhost:9092")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, words = list(root.handlers), root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**words)


def run(serve: Callable[[], Coroutine[Any, Any, None]]) -> int:
    return run_service("example", SETTINGS, serve)


@pytest.mark.parametrize("received", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_the_service_which_closes_up_and_ends_with_0(received: signal.Signals) -> None:
    closed = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("child")

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child())
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), received)

    assert run(serve) == 0
    assert closed == ["child"]


@pytest.mark.parametrize("in_a_group", [False, True])
def test_an_address_that_is_taken_is_one_line_that_names_the_setting(
    capfd: pytest.CaptureFixture[str], in_a_group: bool
) -> None:
    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            first = health_server(Health(), create_registry(), host="127.0.0.1", port=0)
            taken = await stack.enter_async_context(first)
            if in_a_group:
                await stack.enter_async_context(asyncio.TaskGroup())
            await stack.enter_async_context(health_server(Health(), create_registry(), host="127.0.0.1", port=taken))

    assert run(serve) == 1
    output = capfd.readouterr()
    (said,) = [line for line in (output.out + output.err).splitlines() if "cannot start" in line]
    assert "EVENKEEL_METRICS_PORT: cannot listen on 127.0.0.1:" in said
    assert "Traceback" not in output.out + output.err


def test_an_error_in_any_task_ends_with_1() -> None:
    async def child() -> None:
        raise RuntimeError("broken")

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child())
            tasks.create_task(asyncio.Event().wait())  # type: ignore[arg-type]

    assert run(serve) == 1


def test_an_end_that_was_foreseen_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    async def child() -> None:
        raise LookupError("another one has taken over")

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child())
            tasks.create_task(child())

    assert run_service("example", SETTINGS, serve, foreseen=(LookupError,)) == 1
    output = capfd.readouterr()
    (said,) = [line for line in (output.out + output.err).splitlines() if "taken over" in line]
    assert said.count("another one has taken over") == 1
    assert "Traceback" not in output.out + output.err


def test_a_normal_end_is_0() -> None:
    async def serve() -> None:
        return None

    assert run(serve) == 0


@pytest.mark.asyncio
async def test_what_is_away_is_tried_until_it_is_back_and_said_once_per_change() -> None:
    outcomes = [ConnectionError("one"), ConnectionError("two"), None]
    changes: list[tuple[bool, str]] = []

    async def operation() -> str:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return "done"

    reachability = Reachability("example", lambda up, problem: changes.append((up, problem)))
    backoff = Backoff(first_seconds=0.001)
    assert await persist(operation, transient=(ConnectionError,), reachability=reachability, backoff=backoff) == "done"
    assert changes == [(False, "ConnectionError: one"), (True, "")]
    assert reachability.reachable


def test_pauses_double_up_to_a_limit_and_start_over() -> None:
    backoff = Backoff(first_seconds=1.0, longest_seconds=5.0, uniform=lambda _low, high: high)
    assert [backoff.next_seconds() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.reset()
    assert backoff.next_seconds() == 1.0


def test_who_gives_up_waiting_takes_the_problem_back_and_the_log_says_it_once() -> None:
    changes: list[tuple[bool, str]] = []
    reachability = Reachability("example", lambda up, problem: changes.append((up, problem)))
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            reachability.down(TimeoutError())
            reachability.forget()
        reachability.up()
    assert [up for up, _ in changes] == [False, True, False, True, True]
    assert [line["event"] for line in lines] == ["unreachable, waiting for it", "reachable again"]
    assert lines[0]["error"] == "TimeoutError: no answer in time"


def test_a_database_that_refuses_is_quoted_in_the_drivers_words_with_the_setting_that_leads_there() -> None:
    refused = psycopg.OperationalError('FATAL:  password authentication failed for user "evenkeel"')
    problems: list[str] = []
    reachability = Reachability("postgres", lambda _up, problem: problems.append(problem))
    reachability.down(OperationalError("SELECT 1", {}, refused))
    assert problems == [
        'OperationalError: FATAL: password authentication failed for user "evenkeel"; see EVENKEEL_DATABASE_URL'
    ]


def test_a_kafka_that_does_not_answer_is_named_once_with_the_settings_that_lead_there() -> None:
    problems: list[str] = []
    reachability = Reachability("kafka (producer)", lambda _up, problem: problems.append(problem))
    reachability.down(KafkaConnectionError("nobody there"))
    settings = "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS and the other EVENKEEL_KAFKA_ settings"
    assert problems == [f"KafkaConnectionError: nobody there; see {settings}"]


@pytest.mark.asyncio
async def test_a_follower_is_told_what_is_so_and_each_change() -> None:
    reachability = Reachability("example")
    following = reachability.follow()
    assert await anext(following) is False
    reachability.up()
    assert await anext(following) is True
    waiting = asyncio.ensure_future(anext(following))
    reachability.up()
    await asyncio.sleep(0)
    assert not waiting.done(), "nothing has changed"
    reachability.down(TimeoutError())
    assert await waiting is False
