import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1.scheduler_pb2_grpc import FleetServiceStub
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.scheduler.adapters.api.server import fleet_server
from evenkeel.services.scheduler.adapters.api.settings import FleetApiSettings
from evenkeel.services.scheduler.adapters.store.store import Store
from tests.fakes.fleet import FakeFleet
from tests.integration.fleet_api.conftest import FLEET_TOKEN, Api, admission, bearer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

SERVICE = "evenkeel.scheduler.v1.FleetService"


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_says_serving_when_the_scheduler_says_so_and_needs_no_token(api: Api, service: str) -> None:
    health = health_pb2_grpc.HealthStub(api.channel)

    before = await health.Check(health_pb2.HealthCheckRequest(service=service))
    await api.server.set_serving(True)
    after = await health.Check(health_pb2.HealthCheckRequest(service=service))

    assert before.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert after.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_lists_the_services(api: Api) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(api.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")

    answer = await anext(aiter(stub.ServerReflectionInfo(iter([request]))))

    assert SERVICE in {service.name for service in answer.list_services_response.service}


async def test_a_taken_address_says_which_setting_to_change(api: Api) -> None:
    address = f"127.0.0.1:{api.server.port}"
    store = Store(api.engine)
    second = fleet_server(api.fleet, store, CollectorRegistry(), admission(store), address=address)

    with pytest.raises(OSError, match="EVENKEEL_FLEET_ADDRESS"):
        async with second:
            pass


@pytest_asyncio.fixture
async def away() -> AsyncIterator[AsyncEngine]:
    """An engine of a database that is not there."""
    engine = create_engine(
        "postgresql://nobody:secret@127.0.0.1:1/nothing", application_name="test", connect_timeout_seconds=1
    )
    yield engine
    await engine.dispose()


async def test_without_the_database_calls_are_unavailable_and_say_to_try_again(away: AsyncEngine) -> None:
    store = Store(away, timeout_seconds=2.0)
    async with (
        fleet_server(FakeFleet(store), store, CollectorRegistry(), admission(store), address="127.0.0.1:0") as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = FleetServiceStub(channel)
        for metadata in (bearer(FLEET_TOKEN), bearer("job-token-of-someone")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListPlans(pb.ListPlansRequest(job_id="job-1"), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caught.value.details() == "the database is away; try again"


async def test_whoever_sends_megabytes_for_a_name_does_not_fill_the_log(api: Api) -> None:
    with structlog.testing.capture_logs() as logged:
        request = pb.GetJobRequest(job_id="x" * 10**6)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await FleetServiceStub(api.channel).GetJob(request, metadata=bearer("no-token"))
        for _ in range(1000):  # it is told after the answer
            if any(each["event"] == "call" for each in logged):
                break
            await asyncio.sleep(0.01)

    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    (line,) = [each for each in logged if each["event"] == "call"]
    assert len(str(line)) < 1000


@pytest.fixture
def tls(tmp_path: Path) -> FleetApiSettings:
    """Settings with a key and a certificate that it signed itself, for localhost."""
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return FleetApiSettings(fleet_token=FLEET_TOKEN, tls_certificate=certificate, tls_key=key)  # type: ignore[arg-type]


async def test_with_a_certificate_the_api_speaks_tls_and_only_tls(engine: AsyncEngine, tls: FleetApiSettings) -> None:
    store = Store(engine)
    assert tls.tls_certificate is not None
    credentials = grpc.ssl_channel_credentials(tls.tls_certificate.read_bytes())
    async with fleet_server(
        FakeFleet(store),
        store,
        CollectorRegistry(),
        admission(store),
        address="localhost:0",
        credentials=tls.credentials(),
    ) as server:
        address = f"localhost:{server.port}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            stub = FleetServiceStub(channel)
            assert (await stub.ListJobs(pb.ListJobsRequest(), metadata=bearer(FLEET_TOKEN))).jobs == []
        async with grpc.aio.insecure_channel(address) as channel:
            plain = FleetServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plain.ListJobs(pb.ListJobsRequest(), metadata=bearer(FLEET_TOKEN), timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
