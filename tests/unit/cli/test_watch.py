"""Whoever watches a job goes on watching it when the scheduler starts again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from evenkeel.cli.fleet.client import FleetClient
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc

RUNNING, FINISHED = (
    pb.WatchJobResponse(job=pb.Job(job_id="job", state=state))
    for state in (pb.JOB_STATE_RUNNING, pb.JOB_STATE_FINISHED)
)


class Fleet(scheduler_pb2_grpc.FleetServiceServicer):
    """Answers each watch with the next of its courses: messages, then a status, or the orderly end."""

    def __init__(self, *courses: tuple[list[pb.WatchJobResponse], grpc.StatusCode]) -> None:
        self._courses = list(courses)

    def WatchJob(  # noqa: N802 - the contract's name
        self, request: pb.WatchJobRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchJobResponse]:
        messages, status = self._courses.pop(0)
        yield from messages
        if status is not grpc.StatusCode.OK:
            context.abort(status, "as the test says")


def watch(*courses: tuple[list[pb.WatchJobResponse], grpc.StatusCode]) -> tuple[list[int], int]:
    """States that a watcher sees, and how often it was told that nobody is there."""
    server = grpc.server(ThreadPoolExecutor(1))
    scheduler_pb2_grpc.add_FleetServiceServicer_to_server(Fleet(*courses), server)
    client = FleetClient(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", "token")
    server.start()
    losses: list[None] = []
    try:
        states = [response.job.state for response in client.watch_job("job", lost=lambda: losses.append(None))]
    finally:
        client.close()
        server.stop(None).wait()
    return states, len(losses)


def test_a_scheduler_that_goes_away_is_told_once_and_waited_for() -> None:
    away = grpc.StatusCode.UNAVAILABLE
    seen = watch(([RUNNING], away), ([], away), ([RUNNING, FINISHED], grpc.StatusCode.OK))
    assert seen == ([pb.JOB_STATE_RUNNING, pb.JOB_STATE_RUNNING, pb.JOB_STATE_FINISHED], 1)


@pytest.mark.parametrize(
    "courses",
    [[([], grpc.StatusCode.UNAVAILABLE)], [([RUNNING], grpc.StatusCode.NOT_FOUND)]],
    ids=["a fleet API that never answered", "a job that is gone"],
)
def test_nobody_waits_for(courses: list[tuple[list[pb.WatchJobResponse], grpc.StatusCode]]) -> None:
    with pytest.raises(grpc.RpcError):
        watch(*courses)
