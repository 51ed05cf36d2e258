import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from evenkeel.cli.errors import CommandError
from evenkeel.cli.main import app
from evenkeel.contracts.topics import FRAMES
from evenkeel.offline.samples.file import read_messages
from evenkeel.telemetry.v2 import frames_pb2 as pb

pytestmark = pytest.mark.integration


async def publish(bootstrap: str, observations: list[pb.Observation]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for one in observations:
            await producer.send_and_wait(FRAMES.name, one.SerializeToString(), key=one.job_id.encode())
    finally:
        await producer.stop()


def test_a_recorded_job_holds_its_own_observations_in_order(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [
        pb.Observation(job_id=job, sequence=i, frames=pb.Frames(iteration=[i]))
        for i in range(20)
        for job in ("recorded-job", "another-job")
    ]
    asyncio.run(publish(kafka_bootstrap, frames))
    monkeypatch.setenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    path = tmp_path / "job.samples"
    result = CliRunner().invoke(app, ["record", "recorded-job", "-o", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert list(read_messages(path)) == [one for one in frames if one.job_id == "recorded-job"]


def test_a_job_that_kafka_does_not_know_leaves_no_file(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    result = CliRunner().invoke(app, ["record", "no-such-job", "-o", str(tmp_path / "x")])
    assert isinstance(result.exception, CommandError)
    assert not (tmp_path / "x").exists()
