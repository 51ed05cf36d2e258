"""``evenkeel why`` on a job whose frames lie in a real Kafka."""

import asyncio
import json

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from benchmarks.detection.traces.traces import make_trace
from evenkeel.cli.errors import CommandError
from evenkeel.cli.main import app
from evenkeel.contracts.frames import write_frames
from evenkeel.contracts.topics import FRAMES
from evenkeel.telemetry.v2 import frames_pb2 as pb

pytestmark = pytest.mark.integration

TRACE = make_trace(5, shape="4x2x2", slowdown_percent=50, num_iterations=160)


async def publish(bootstrap: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_request_size=4_000_000)
    await producer.start()
    try:
        for number, frame in enumerate(TRACE.frames()):
            message = pb.Observation(job_id="slow-job", sequence=number)
            write_frames(message.frames, frame)
            await producer.send(FRAMES.name, message.SerializeToString(), key=b"slow-job")
        await producer.flush()
    finally:
        await producer.stop()


def test_why_names_the_slow_rank_of_a_job_that_runs(kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(publish(kafka_bootstrap))
    monkeypatch.setenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    result = CliRunner().invoke(app, ["-o", "json", "why", "slow-job", "-n", "16"], catch_exceptions=False)
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert (said["last_iteration"], said["num_iterations"]) == (159, 16)
    assert said["ill_ranks"] == list(TRACE.faults[0].ranks)
    assert said["replayed_seconds"] == pytest.approx(said["measured_seconds"], rel=0.02)
    table = CliRunner().invoke(app, ["why", "slow-job"], catch_exceptions=False)
    assert "slow_workers" in table.stdout
    assert "SHARE OF SLOWDOWN" in table.stdout


def test_why_of_an_unknown_job_says_that_nothing_is_known(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    result = CliRunner().invoke(app, ["why", "no-such-job"])
    assert isinstance(result.exception, CommandError)
    assert "no iterations" in str(result.exception)
