"""The gRPC server of the scheduler: fleet API, health, reflection, and TLS where a certificate is given."""

import contextlib
from collections.abc import AsyncIterator

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from evenkeel.services.common.settings import BindError
from evenkeel.services.scheduler.adapters.api.admission import Admission
from evenkeel.services.scheduler.adapters.api.fleet_api import FleetApi
from evenkeel.services.scheduler.adapters.api.health_service import HealthService
from evenkeel.services.scheduler.adapters.api.interceptor import SERVICE, FleetApiInterceptor, FleetApiMetrics
from evenkeel.services.scheduler.adapters.ranks.tls import RankTls
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.serving.coordinator import Coordinator

_GRACE_SECONDS = 1.0
_OPTIONS = (
    # Two schedulers on one port would each get some of the calls.
    ("grpc.so_reuseport", 0),
    # Watchers hold a stream for days: let them ask every 10 s whether it still is one.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)

_log = structlog.get_logger(__name__)


class FleetServer:
    """The running server.

    Attributes:
        port: The bound port.
    """

    def __init__(self, port: int, status: HealthService) -> None:
        self.port = port
        self._status = status

    async def set_serving(self, serving: bool) -> None:
        """What the health service answers, for the server as a whole and for the fleet service."""
        code = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (health.OVERALL_HEALTH, SERVICE):
            await self._status.set(name, code)


@contextlib.asynccontextmanager
async def fleet_server(
    fleet: Coordinator,
    history: Store,
    registry: CollectorRegistry,
    admission: Admission,
    *,
    address: str,
    credentials: grpc.ServerCredentials | None = None,
    rank_tls: RankTls | None = None,
) -> AsyncIterator[FleetServer]:
    """Serves inside the ``async with``; NOT_SERVING until :meth:`FleetServer.set_serving` says otherwise.

    Args:
        fleet: The coordinator.
        history: Of the scheduler.
        registry: For the API's metrics.
        admission: Which calls are let in.
        address: ``host:port`` to bind; port 0 = any free one.
        credentials: Of the server; None = no TLS.
        rank_tls: How the scheduler talks to ranks: those that want it otherwise cannot register.

    Raises:
        BindError: The address is taken or not ours.
    """
    interceptors = [FleetApiInterceptor(admission, FleetApiMetrics(registry))]
    server = grpc.aio.server(interceptors=interceptors, options=list(_OPTIONS))
    pb_grpc.add_FleetServiceServicer_to_server(FleetApi(fleet, history, rank_tls), server)
    status = HealthService()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    names = (pb.DESCRIPTOR.services_by_name["FleetService"].full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    running = FleetServer(_bind(server, address, credentials), status)
    await running.set_serving(False)
    await server.start()
    _log.info("fleet API listens", port=running.port, tls=credentials is not None)
    try:
        yield running
    finally:
        await running.set_serving(False)
        await server.stop(_GRACE_SECONDS)


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise BindError(f"EVENKEEL_FLEET_ADDRESS: cannot listen on {address}: {error}; choose a free one") from error
