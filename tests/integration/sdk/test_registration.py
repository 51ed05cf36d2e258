"""Registration against a fleet API that is late, restarts, or refuses."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.fleet.access import FleetAccess
from evenkeel.trainer_sdk.control.fleet.registration import Registration

pytestmark = pytest.mark.integration

PROCESS = pb.RankProcess(rank=3, incarnation=2, node="node-1", device="gpu-1", address="127.0.0.1:5")


class Fleet(scheduler_pb2_grpc.FleetServiceServicer):
    """A fleet API that knows RegisterRanks only, and refuses its first calls as told."""

    def __init__(self, *refusals: grpc.StatusCode) -> None:
        self.refusals = refusals
        self.requests: list[pb.RegisterRanksRequest] = []
        self.tokens: list[str] = []
        self.changed = threading.Condition()

    def RegisterRanks(  # noqa: N802
        self, request: pb.RegisterRanksRequest, context: grpc.ServicerContext
    ) -> pb.RegisterRanksResponse:
        with self.changed:
            self.requests.append(request)
            self.tokens += [str(value) for key, value in context.invocation_metadata() if key == "authorization"]
            self.changed.notify_all()
            if len(self.requests) <= len(self.refusals):
                context.abort(self.refusals[len(self.requests) - 1], "not now")
        return pb.RegisterRanksResponse()

    def wait_for(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.requests) >= count, 60)


@pytest.fixture
def serve() -> Iterator[Callable[[Fleet, int], int]]:
    servers = []

    def start(fleet: Fleet, port: int = 0) -> int:
        server = grpc.server(ThreadPoolExecutor(max_workers=2), options=[("grpc.so_reuseport", 0)])
        scheduler_pb2_grpc.add_FleetServiceServicer_to_server(fleet, server)
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        servers.append(server)
        return bound

    yield start
    for server in servers:
        server.stop(None).wait(5)


def registration(port: int, is_watched: Callable[[], bool], *, is_launched: bool = False) -> Registration:
    return Registration(
        FleetAccess(address=f"127.0.0.1:{port}", job_id="job", job_token="token"),
        PROCESS,
        is_watched=is_watched,
        check_interval_seconds=0.02,
        is_launched=is_launched,
    )


@pytest.mark.parametrize("is_launched", [True, False])
def test_a_rank_registers_as_soon_as_its_job_is_known_and_leaves_what_it_waits_for_to_its_launcher_to_say(
    serve: Callable[[Fleet, int], int], caplog: pytest.LogCaptureFixture, is_launched: bool
) -> None:
    fleet = Fleet(grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)
    rank = registration(serve(fleet, 0), is_watched=lambda: True, is_launched=is_launched)
    with caplog.at_level(logging.WARNING, "evenkeel.control"):
        rank.start()
        assert fleet.wait_for(3), "one more for each call that a busy machine answers too late"
        rank.stop()
    said = [one for one in caplog.messages if "NOT_FOUND" in one or "PERMISSION_DENIED" in one]
    assert bool(said) != is_launched
    assert set(fleet.tokens) == {"Bearer token"}
    request = fleet.requests[-1]
    (process,) = request.processes
    assert (request.job_id, process.rank, process.incarnation, process.node) == ("job", 3, 2, "node-1")
    assert process.address == "127.0.0.1:5"


def test_a_rank_that_nobody_watches_registers_again(serve: Callable[[Fleet, int], int]) -> None:
    fleet = Fleet()
    rank = registration(serve(fleet, 0), is_watched=lambda: False)
    rank.start()
    assert fleet.wait_for(3)
    rank.stop()


def test_a_rank_that_no_scheduler_ever_reached_says_so_once(
    serve: Callable[[Fleet, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet()
    rank = registration(serve(fleet, 0), is_watched=lambda: False)
    with caplog.at_level(logging.WARNING, "evenkeel.control"):
        rank.start()
        assert fleet.wait_for(4)
        rank.stop()
    (said,) = caplog.messages
    assert "opens no stream to its controller at 127.0.0.1:5" in said


def test_each_reason_of_a_refusal_is_said_once_whatever_came_before_it(
    serve: Callable[[Fleet, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    late, refused = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED
    fleet = Fleet(late, late, refused, late, refused)
    with caplog.at_level(logging.WARNING, "evenkeel.control"):
        rank = registration(serve(fleet, 0), is_watched=lambda: True)
        rank.start()
        assert fleet.wait_for(6)
        rank.stop()
    told = [code.name for code in (late, refused) for one in caplog.messages if f"({code.name}:" in one]
    assert told == [late.name, refused.name]


def test_a_rank_registers_with_a_fleet_api_that_comes_up_later(serve: Callable[[Fleet, int], int]) -> None:
    fleet = Fleet()
    with socket.socket() as holder:  # so that nobody takes the port while no server has it
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        other = grpc.server(ThreadPoolExecutor(max_workers=1), options=[("grpc.so_reuseport", 0)])
        other.add_insecure_port(f"127.0.0.1:{port}")
        other.start()  # answers UNIMPLEMENTED: a service of another kind
        rank = registration(port, is_watched=lambda: True)
        rank.start()
        time.sleep(0.3)
        other.stop(None).wait(20)
        serve(fleet, port)
        assert fleet.wait_for(1)
        rank.stop()


def test_a_launcher_asks_what_the_ranks_do_and_hears_nothing_where_nobody_says(
    serve: Callable[[Fleet, int], int],
) -> None:
    class Standing(Fleet):
        def GetJob(self, request: pb.GetJobRequest, context: grpc.ServicerContext) -> pb.GetJobResponse:  # noqa: N802
            assert ("authorization", "Bearer token") in context.invocation_metadata()
            return pb.GetJobResponse(job=pb.Job(standing=pb.Standing(summary=f"{request.job_id} trains")))

    def said(address: str) -> str:
        return FleetAccess(address=address, job_id="job", job_token="token").standing()

    assert said(f"127.0.0.1:{serve(Standing(), 0)}") == "job trains"
    assert said(f"127.0.0.1:{serve(Fleet(), 0)}") == said("") == ""
