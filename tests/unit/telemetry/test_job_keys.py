"""Nobody speaks for a job that has a key; and jobs that have none are heard, if that is wanted."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from evenkeel.contracts.mac import JobKey, UnbelievedError, job_key, signed
from evenkeel.services.telemetry.adapters.job_keys import JobKeys
from evenkeel.telemetry.v2 import batch_pb2, process_pb2
from tests.unit.telemetry.handled import PARTITION, Service, Tokens, batch_of_nothing

pytestmark = pytest.mark.asyncio

TOKENS = {"job": "a-token-of-this-job", "other": "a-token-of-another"}
KEY, OTHERS_KEY = job_key("job", TOKENS["job"]), job_key("other", TOKENS["other"])
VALUE = b"\x0a\x01j"


def death(rank: int, incarnation: int = 0) -> batch_pb2.Batch:
    batch = batch_of_nothing(-1)
    batch.num_events[0] = 1
    kind = process_pb2.PROCESS_EVENT_KIND_DIED
    batch.events.add(kind=kind, rank=rank, incarnation=incarnation, at_unix_seconds=5.0)
    return batch


@pytest.mark.parametrize(
    ("key", "error"),
    [(None, "unsigned"), (OTHERS_KEY, "signature"), (JobKey(7, b"k" * 32), "unknown_key")],
)
async def test_a_death_that_a_stranger_made_up_is_set_aside(key: JobKey | None, error: str) -> None:
    service = Service(tokens=TOKENS)
    await service.handler.assigned([PARTITION])
    await service.take(death(3), key=key)
    assert [each.error for each in service.set_aside] == [error]
    assert service.sent == []
    service.registered = {("job", 3, 0)}
    await service.take(death(3), key=KEY)
    assert [(one.liveness.event.kind, one.liveness.event.rank) for one in service.sent] == [
        (process_pb2.PROCESS_EVENT_KIND_DIED, 3)
    ]
    assert len(service.set_aside) == 1


async def test_a_job_that_is_not_registered_is_heard_signed_or_not() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    await service.take(death(1))
    await service.take(death(2), key=KEY)
    assert service.set_aside == []
    assert [one.liveness.event.rank for one in service.sent] == [1, 2]


async def test_the_end_of_a_process_that_never_registered_is_set_aside_and_what_came_with_it_is_not() -> None:
    service = Service(tokens=TOKENS)
    await service.handler.assigned([PARTITION])
    service.registered = {("job", 3, 0), ("job", 2, 1)}
    await service.take(death(3), death(3, 10**9), death(2), death(2, 1), key=KEY)
    assert [(each.error, each.record.offset) for each in service.set_aside] == [
        ("unregistered_process", 1),
        ("unregistered_process", 2),
    ]
    told = [one.liveness.event for one in service.sent]
    assert [(event.rank, event.incarnation) for event in told] == [(3, 0), (2, 1)]


async def test_no_end_waits_for_a_database_that_is_away() -> None:
    service = Service(tokens=TOKENS)
    await service.handler.assigned([PARTITION])
    service.history_is_away = True
    await service.take(death(3), key=KEY)
    assert len(service.sent) == 1
    assert service.set_aside == []


async def nobody(_: Sequence[tuple[str, int, int]]) -> set[tuple[str, int, int]]:
    return set()


class Clock:
    """Seconds, in the test's hands."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def word(keys: JobKeys, record_key: bytes, value: bytes) -> str:
    """Why a batch is not believed; empty if it is."""
    try:
        assert keys.believed(record_key, value) == VALUE
    except UnbelievedError as error:
        return error.word
    return ""


async def test_a_job_that_is_registered_after_it_was_heard_is_no_longer_believed_unsigned() -> None:
    tokens, clock = Tokens({}), Clock()
    keys = JobKeys(tokens, nobody, allow_unsigned=True, monotonic=clock)
    await keys.load()
    await keys.learn([b"job"])
    assert word(keys, b"job", VALUE) == ""
    tokens.tokens = TOKENS
    clock.now = 1.5
    await keys.learn([b"job"])
    assert word(keys, b"job", VALUE) == "unsigned"
    assert word(keys, b"job", signed(VALUE, KEY)) == ""
    asked = tokens.asked
    clock.now = 1e6
    await keys.learn([b"job"])
    assert tokens.asked == asked, "a job's key never changes"


async def test_where_it_is_not_wanted_no_job_is_heard_that_is_not_registered() -> None:
    keys = JobKeys(Tokens({}), nobody, allow_unsigned=False)
    await keys.load()
    await keys.learn([b"job", b"\xff", b""])
    for record_key in (b"job", b"\xff", b""):
        assert word(keys, record_key, VALUE) == word(keys, record_key, signed(VALUE, KEY)) == "unregistered"


async def test_while_the_database_is_away_known_jobs_go_on_and_no_other_is_believed() -> None:
    tokens, clock = Tokens(TOKENS), Clock()
    changes: list[bool] = []
    keys = JobKeys(tokens, nobody, allow_unsigned=True, on_change=lambda up, _: changes.append(up), monotonic=clock)
    await keys.load()
    await keys.learn([b"loop"])
    tokens.away = True
    clock.now = 10.0
    await keys.learn([b"job", b"loop", b"new"])
    assert word(keys, b"job", signed(VALUE, KEY)) == word(keys, b"loop", VALUE) == ""
    assert word(keys, b"job", VALUE) == "unsigned"
    assert word(keys, b"new", VALUE) == word(keys, b"new", signed(VALUE, KEY)) == "key_unread"
    asked = tokens.asked
    await keys.learn([b"new"])
    assert tokens.asked == asked, "a fetch does not wait for a database that is known to be away"
    tokens.away = False
    running = asyncio.create_task(keys.run())
    async with asyncio.timeout(60):
        while not changes[-1]:  # noqa: ASYNC110 - it looks once a second
            await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert changes == [True, False, True]
    await keys.learn([b"new"])
    assert word(keys, b"new", VALUE) == ""


async def test_that_the_database_is_away_is_noticed_while_nothing_new_is_heard() -> None:
    tokens = Tokens(TOKENS)
    noticed = asyncio.Event()
    keys = JobKeys(tokens, nobody, allow_unsigned=True, on_change=lambda up, _: None if up else noticed.set())
    await keys.load()
    tokens.away = True
    running = asyncio.create_task(keys.run())
    async with asyncio.timeout(60):
        await noticed.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_nothing_is_read_before_the_keys_were_there_once() -> None:
    tokens = Tokens(TOKENS)
    tokens.away = True
    keys = JobKeys(tokens, nobody, allow_unsigned=True)
    loading = asyncio.create_task(keys.load())
    async with asyncio.timeout(60):
        while tokens.asked < 2:  # noqa: ASYNC110 - it pauses between two attempts
            await asyncio.sleep(0.01)
    assert not loading.done()
    tokens.away = False
    await loading
    assert word(keys, b"job", signed(VALUE, KEY)) == ""
