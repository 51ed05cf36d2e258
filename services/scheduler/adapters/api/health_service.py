"""Whether the scheduler is in charge, for those who watch it over gRPC."""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer


class HealthService(HealthServicer):  # type: ignore[misc, unused-ignore]
    """The health service, whose watchers hear of each change. Belongs to the event loop's thread.

    That of the library forgets all watchers of a service when one of them leaves: whoever held a channel to two
    schedulers did not learn that the other one had taken over, if a command had looked at it meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    async def Watch(  # noqa: N802 - the contract's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Tells the status of a service now and at each change, until the caller leaves."""
        told = None
        while True:
            changed = self._changed
            status = self._server_status.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            await changed.wait()

    async def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Sets the status of a service."""
        await super().set(service, status)
        self._changed.set()
        self._changed = asyncio.Event()
