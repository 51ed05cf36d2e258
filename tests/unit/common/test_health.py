import asyncio
import json
import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from evenkeel.services.common.health import Health, health_server, ready_file


async def get(port: int, request: bytes) -> tuple[str, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode().splitlines()[0] if head else "", body


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.asyncio
async def test_it_is_ready_when_every_part_is() -> None:
    health = Health("kafka", "consumer")
    async with health_server(health, CollectorRegistry(), host="127.0.0.1", port=0) as port:
        assert (await get(port, request("/healthz")))[0] == "HTTP/1.1 503 Service Unavailable"
        health.report("kafka", ready=True)
        health.report("consumer", ready=True, detail="4 partitions")
        status, body = await get(port, request("/healthz?verbose"))
        assert status == "HTTP/1.1 200 OK"
        assert json.loads(body)["parts"]["consumer"] == {"ready": True, "detail": "4 partitions"}
        health.report("kafka", ready=False, detail="away")
        assert (await get(port, request("/healthz")))[0] == "HTTP/1.1 503 Service Unavailable"
        assert (await get(port, request("/livez")))[0] == "HTTP/1.1 200 OK"


@pytest.mark.asyncio
async def test_metrics_are_those_of_the_registry() -> None:
    registry = CollectorRegistry()
    Counter("evenkeel_example", "An example", registry=registry).inc(3)
    async with health_server(Health(), registry, host="127.0.0.1", port=0) as port:
        _, body = await get(port, request("/metrics"))
    assert b"evenkeel_example_total 3.0" in body


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "garbage", [b"\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"\xff\x00\r\n\r\n", b"x" * 20_000 + b"\r\n\r\n"]
)
async def test_garbage_gets_no_metrics_and_does_no_harm(garbage: bytes) -> None:
    async with health_server(Health(), CollectorRegistry(), host="127.0.0.1", port=0) as port:
        try:
            status, _ = await get(port, garbage)
        except ConnectionError:
            status = ""
        assert "200" not in status
        assert (await get(port, request("/livez")))[0] == "HTTP/1.1 200 OK"


@pytest.mark.asyncio
async def test_the_ready_file_holds_the_ports_and_goes_with_the_process(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    async with ready_file(path, metrics_port=1234, grpc_port=5678):
        assert json.loads(path.read_text()) == {"metrics_port": 1234, "grpc_port": 5678, "pid": os.getpid()}
    assert os.listdir(tmp_path) == []


def test_a_part_that_several_look_at_is_ready_when_nobody_says_otherwise() -> None:
    health = Health("kafka")
    consumer, producer = health.witness("kafka", "consumer"), health.witness("kafka", "producer")
    assert not health.ready
    consumer(True, "")
    assert health.ready
    producer(False, "no answer in time")
    consumer(True, "")
    assert not health.ready
    assert health.as_dict()["parts"] == {"kafka": {"ready": False, "detail": "producer: no answer in time"}}
    producer(True, "")
    assert health.ready
