"""The emit path against a real broker that is up, away, or silent."""

import asyncio
import os
import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord

import evenkeel
from evenkeel.contracts.mac import job_key, verified
from evenkeel.contracts.topics import BATCHES
from evenkeel.layouts.layout import uniform_layout
from evenkeel.stack.kafka.node import Kafka
from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2
from evenkeel.trainer_sdk.emit.batch import Source
from evenkeel.trainer_sdk.emit.kafka_emitter import KafkaEmitter
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.launcher import Launcher

pytestmark = pytest.mark.integration

TOKEN = "a-token-of-this-job"


@pytest.fixture
def job_id() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


def read_until(
    bootstrap: str, job_id: str, enough: Callable[[list[pb.Batch]], bool], timeout_seconds: float = 200.0
) -> list[ConsumerRecord[bytes, bytes]]:
    """The job's records from the topic's beginning on, once they are enough."""

    async def read() -> list[ConsumerRecord[bytes, bytes]]:
        consumer = AIOKafkaConsumer(
            BATCHES.name, bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        messages: list[ConsumerRecord[bytes, bytes]] = []
        try:
            async with asyncio.timeout(timeout_seconds):
                while not enough([pb.Batch.FromString(message.value) for message in messages]):
                    message = await consumer.getone()
                    if message.key == job_id.encode():
                        messages.append(message)
        finally:
            await consumer.stop()
        return messages

    return asyncio.run(read())


def decoded(messages: list[ConsumerRecord[bytes, bytes]]) -> list[pb.Batch]:
    return [pb.Batch.FromString(message.value) for message in messages]


def assert_signed(messages: list[ConsumerRecord[bytes, bytes]], job_id: str) -> None:
    key = job_key(job_id, TOKEN)
    assert key is not None
    assert messages
    for message in messages:
        verified(message.value, key)


def iterations(records: list[pb.Batch]) -> list[int]:
    return [iteration for record in records for iteration in record.iteration]


def events(records: list[pb.Batch]) -> list[tuple[int, int, int]]:
    return [(event.kind, event.rank, event.incarnation) for record in records for event in record.events]


def test_everything_arrives_in_order_with_key_and_headers(kafka_bootstrap: str, job_id: str) -> None:
    source = Source(job_id=job_id, rank=3, incarnation=1, node="n", device="d")
    emitter = KafkaEmitter(kafka_bootstrap, source, key=job_key(job_id, TOKEN))
    emitter.progress.begin_iteration(299, 0)
    emitter.progress.enter("wait:tensor", (2,))
    for iteration in range(301):
        emitter.emit_later(partial(Measured, iteration=iteration))

    def waits(records: list[pb.Batch]) -> bool:
        reports = [report for record in records for report in record.progress]
        return any((report.operation, list(report.waiting_for)) == ("wait:tensor", [2]) for report in reports)

    messages = read_until(
        kafka_bootstrap, job_id, lambda records: waits(records) and len(iterations(records)) >= 301, 200.0
    )
    emitter.close(60.0)
    assert (emitter.num_dropped, emitter.num_sent) == (0, 301)
    assert_signed(messages, job_id)
    records = decoded(messages)
    assert iterations(records) == list(range(301))
    assert [number for record in records for number in record.sequence] == list(range(len(records)))
    assert {(*record.job_id, *record.rank, *record.incarnation) for record in records} == {(job_id, 3, 1)}
    headers = dict(messages[0].headers)
    assert headers["content-type"] == b"application/protobuf"
    assert headers["ce_type"] == BATCHES.message.encode()


def test_what_was_emitted_while_kafka_was_away_arrives_when_it_is_back(own_kafka: Kafka, job_id: str) -> None:
    emitter = KafkaEmitter(own_kafka.bootstrap_servers, Source(job_id=job_id, rank=0))
    emitter.emit_later(partial(Measured, iteration=0))
    read_until(own_kafka.bootstrap_servers, job_id, lambda records: iterations(records) == [0])
    own_kafka.stop(grace_seconds=0)
    for iteration in range(1, 50):
        emitter.emit_later(partial(Measured, iteration=iteration))
    own_kafka.start()
    messages = read_until(
        own_kafka.bootstrap_servers, job_id, lambda records: set(iterations(records)) == set(range(50)), 200.0
    )
    emitter.close()
    assert emitter.num_dropped == 0
    assert len(messages) >= 2


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A server that accepts connections, by its backlog, and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("state", ["closed", "silent"])
def test_a_broker_that_never_answers_costs_the_oldest_entries_and_holds_nobody_up(
    state: str, silent_address: str, job_id: str
) -> None:
    address = silent_address if state == "silent" else "127.0.0.1:1"
    emitter = KafkaEmitter(address, Source(job_id=job_id, rank=0), capacity=100)
    for iteration in range(1000):
        emitter.emit_later(partial(Measured, iteration=iteration))  # who waited for the broker would wait for ever
    assert emitter.num_dropped >= 900
    emitter.close(0.3)
    assert not emitter._thread.is_alive()
    emitter.emit_later(partial(Measured, iteration=1000))  # after the end: forgotten, no error


def test_a_sample_that_cannot_be_built_is_dropped_alone(kafka_bootstrap: str, job_id: str) -> None:
    def broken() -> Measured:
        raise ZeroDivisionError

    emitter = KafkaEmitter(kafka_bootstrap, Source(job_id=job_id, rank=0))
    for build in (partial(Measured, iteration=1), broken, partial(Measured, iteration=2)):
        emitter.emit_later(build)
    emitter.close(60.0)
    assert emitter.num_dropped == 1
    records = decoded(read_until(kafka_bootstrap, job_id, lambda records: len(iterations(records)) == 2))
    assert iterations(records) == [1, 2]


def test_a_plain_loop_reaches_kafka(kafka_bootstrap: str, job_id: str) -> None:
    environment = {"EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap, "EVENKEEL_JOB_ID": job_id, "RANK": "5"}
    environment["EVENKEEL_JOB_TOKEN"] = TOKEN
    run = evenkeel.start(environment=environment)
    for batch in ([1.0, 2.0], [3.0, 5.0]):
        with run.iteration(tokens=len(batch)) as iteration:
            iteration.loss = sum(batch)
    # Its end is told within a second, which a busy machine may need to reach the broker for the first time.
    read_until(kafka_bootstrap, job_id, lambda records: len(iterations(records)) == 2)
    evenkeel.stop()
    messages = read_until(
        kafka_bootstrap, job_id, lambda records: len(iterations(records)) == len(events(records)) == 2
    )
    assert_signed(messages, job_id)
    records = decoded(messages)
    losses = [loss for record in records for loss in record.loss]
    assert losses == [3.0, 8.0]
    started, finished = process_pb2.PROCESS_EVENT_KIND_STARTED, process_pb2.PROCESS_EVENT_KIND_FINISHED
    assert events(records) == [(started, 5, 0), (finished, 5, 0)]


def test_the_launcher_reports_a_killed_rank_and_the_ranks_report_their_starts(
    kafka_bootstrap: str, job_id: str, tmp_path: Path
) -> None:
    spec = JobSpec(
        job_id=job_id,
        job_token=TOKEN,
        entry_point="launched_ranks:until_told",
        layout=uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=2, num_micro_batches=2),
        run_dir=tmp_path,
        python_path=(str(Path(__file__).parent / "entry_points"),),
        kafka_bootstrap_servers=kafka_bootstrap,
        restart_delay_seconds=0.0,
    )
    started, died = process_pb2.PROCESS_EVENT_KIND_STARTED, process_pb2.PROCESS_EVENT_KIND_DIED
    with Launcher(spec) as launcher:
        both = {(started, 0, 0), (started, 1, 0)}
        read_until(kafka_bootstrap, job_id, lambda records: both <= set(events(records)))
        os.kill(launcher.pids[1], signal.SIGKILL)
        after = both | {(died, 1, 0), (started, 1, 1)}
        messages = read_until(kafka_bootstrap, job_id, lambda records: after <= set(events(records)))
    assert_signed(messages, job_id)
    told = [(record.rank[0], event) for record in decoded(messages) for event in record.events]
    death = next(event for speaker, event in told if event.kind == died and speaker == -1)
    back = next(event for _, event in told if (event.kind, event.rank, event.incarnation) == (started, 1, 1))
    assert death.detail == "killed by SIGKILL"
    assert death.at_unix_seconds <= back.at_unix_seconds, "the death is told when it is seen, not when it is mended"
