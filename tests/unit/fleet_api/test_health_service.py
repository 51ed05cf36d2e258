"""Who watches whether a scheduler is in charge hears it, whoever else has looked and left meanwhile."""

import asyncio
from contextlib import suppress

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenkeel.services.scheduler.adapters.api.health_service import HealthService

_SERVING = health_pb2.HealthCheckResponse.SERVING
_STANDS_BY = health_pb2.HealthCheckResponse.NOT_SERVING


async def _what_is_heard_after_another_has_left() -> list[int]:
    server, service = grpc.aio.server(), HealthService()
    health_pb2_grpc.add_HealthServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await service.set("fleet", _STANDS_BY)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        stays, leaves = (stub.Watch(health_pb2.HealthCheckRequest(service="fleet")) for _ in range(2))
        heard = [(await stays.read()).status, (await leaves.read()).status]
        leaves.cancel()
        await asyncio.sleep(0.3)
        await service.set("fleet", _SERVING)
        with suppress(TimeoutError):
            heard.append((await asyncio.wait_for(stays.read(), 5.0)).status)
    await server.stop(None)
    return heard


def test_a_watcher_hears_of_a_change_after_another_has_left() -> None:
    assert asyncio.run(_what_is_heard_after_another_has_left()) == [_STANDS_BY, _STANDS_BY, _SERVING]
