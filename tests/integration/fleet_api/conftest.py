from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import pytest_asyncio
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.scheduler.v1.scheduler_pb2_grpc import FleetServiceStub
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.scheduler.adapters.api.admission import Admission
from evenkeel.services.scheduler.adapters.api.server import FleetServer, fleet_server
from evenkeel.services.scheduler.adapters.store.store import Store
from tests.fakes.fleet import FakeFleet

if TYPE_CHECKING:  # the stubs have it, the generated code does not
    from evenkeel.scheduler.v1.scheduler_pb2_grpc import FleetServiceAsyncStub

FLEET_TOKEN = "fleet-token-0123456789"

Metadata = tuple[tuple[str, str], ...]


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def admission(store: Store) -> Admission:
    """Of a scheduler in charge."""
    admission = Admission(FLEET_TOKEN, store)
    admission.open()
    return admission


@dataclass(frozen=True, kw_only=True)
class Api:
    """A fleet API on a real port over a real database, and a client of it."""

    stub: "FleetServiceAsyncStub"
    channel: grpc.aio.Channel
    server: FleetServer
    fleet: FakeFleet
    engine: AsyncEngine
    registry: CollectorRegistry


@pytest_asyncio.fixture
async def engine(fresh_database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database_url, application_name="test", connect_timeout_seconds=60)
    yield engine
    await engine.dispose()


@pytest_asyncio.fixture
async def api(engine: AsyncEngine) -> AsyncIterator[Api]:
    store = Store(engine, timeout_seconds=60.0)
    fleet = FakeFleet(store)
    registry = CollectorRegistry()
    async with (
        fleet_server(fleet, store, registry, admission(store), address="127.0.0.1:0") as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Api(
            stub=FleetServiceStub(channel),
            channel=channel,
            server=server,
            fleet=fleet,
            engine=engine,
            registry=registry,
        )
