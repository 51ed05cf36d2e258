"""Calls go to whichever scheduler is in charge, of all that are named."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.tls import fleet_channel

pytestmark = pytest.mark.integration

SERVICE = "evenkeel.scheduler.v1.FleetService"
DEADLINE_SECONDS = 60.0


class Scheduler(scheduler_pb2_grpc.FleetServiceServicer):
    """A fleet API that says who it is, and whether it is in charge."""

    def __init__(self, name: str) -> None:
        self.name, self.health = name, health.HealthServicer()
        self.server = grpc.server(ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
        scheduler_pb2_grpc.add_FleetServiceServicer_to_server(self, self.server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.stand_by()
        self.server.start()

    def stand_by(self) -> None:
        self.health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)

    def take_over(self) -> None:
        self.health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    def ListJobs(  # noqa: N802
        self, request: pb.ListJobsRequest, context: grpc.ServicerContext
    ) -> pb.ListJobsResponse:
        return pb.ListJobsResponse(next_page_token=self.name)


@pytest.fixture
def schedulers() -> Iterator[list[Scheduler]]:
    made = [Scheduler("first"), Scheduler("second")]
    yield made
    for each in made:
        each.server.stop(None).wait(5)


def who_answers(stub: scheduler_pb2_grpc.FleetServiceStub) -> str:
    ends = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return stub.ListJobs(pb.ListJobsRequest(), timeout=10).next_page_token
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > ends:
                raise


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_one_in_charge_answers_also_after_it_has_changed(schedulers: list[Scheduler], host: str) -> None:
    first, second = schedulers
    second.take_over()
    with fleet_channel(f"{host}:{first.port}, {host}:{second.port}") as channel:
        stub = scheduler_pb2_grpc.FleetServiceStub(channel)
        assert {who_answers(stub) for _ in range(10)} == {"second"}
        second.stand_by()
        first.take_over()
        second.server.stop(None).wait(5)
        assert {who_answers(stub) for _ in range(10)} == {"first"}


def test_a_name_that_nobody_knows_and_a_port_where_nobody_is_keep_nobody_out(schedulers: list[Scheduler]) -> None:
    schedulers[0].take_over()
    address = f"no-such-host.invalid:1,127.0.0.1:1,127.0.0.1:{schedulers[0].port}"
    with fleet_channel(address) as channel:
        assert who_answers(scheduler_pb2_grpc.FleetServiceStub(channel)) == "first"


def test_of_one_address_also_a_scheduler_that_stands_by_is_heard(schedulers: list[Scheduler]) -> None:
    with fleet_channel(f"127.0.0.1:{schedulers[0].port}") as channel:
        assert who_answers(scheduler_pb2_grpc.FleetServiceStub(channel)) == "first"
