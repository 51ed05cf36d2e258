"""The fleet API for commands: one channel, the token in each call, refusals turned into advice."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import grpc
import typer

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.session import setting
from evenkeel.detector.v1 import detector_pb2
from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.tls import checked_fleet_ca_file, fleet_channel, fleet_tls_advice

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
CALL_TIMEOUT_SECONDS = 10.0
_RETRY_SECONDS = 0.5
PAGE_SIZE = 100


class FleetClient:
    """Calls to the fleet API. Blocking; every unary call has a deadline.

    Args:
        address: ``host:port``.
        token: Bearer token.
        ca_file: PEM file with the certificates that the API's is signed by; empty = no TLS.
    """

    def __init__(self, address: str, token: str, ca_file: str = "") -> None:
        self._channel = fleet_channel(address, ca_file)
        self._stub = scheduler_pb2_grpc.FleetServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {token}"),)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def register_plain_job(
        self, job_id: str, *, num_ranks: int, token: str, num_micro_batches: int = 0
    ) -> scheduler_pb2.Job:
        """Makes a job known with a loop of its own: ranks that all do the same, each a replica.

        Args:
            job_id: Its id.
            num_ranks: How many.
            token: The job's.
            num_micro_batches: Of a step, of replicas that share them out; 0 = nobody can reshape the loop.
        """
        whole = num_micro_batches > 0
        layout = uniform_layout(
            num_blocks=1, tensor=1, pipeline=1, data=num_ranks, num_micro_batches=num_micro_batches or num_ranks
        )
        layout = replace(layout, whole=whole)
        model = ModelSpec(blocks=(BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0),))
        request = scheduler_pb2.RegisterJobRequest(
            job_id=job_id, job_token=token, model=model_to_proto(model), layout=layout_to_proto(layout)
        )
        return self._stub.RegisterJob(request, metadata=self._metadata, timeout=CALL_TIMEOUT_SECONDS).job

    def finish_job(self, job_id: str) -> None:
        """Ends a job: nobody watches it any more."""
        request = scheduler_pb2.FinishJobRequest(job_id=job_id)
        self._stub.FinishJob(request, metadata=self._metadata, timeout=CALL_TIMEOUT_SECONDS)

    def jobs(self) -> Iterator[scheduler_pb2.Job]:
        """All jobs, newest first."""
        for page in self._pages(self._stub.ListJobs, scheduler_pb2.ListJobsRequest()):
            yield from page.jobs

    def job(self, job_id: str) -> scheduler_pb2.Job:
        """A job as it is, or as it ended."""
        request = scheduler_pb2.GetJobRequest(job_id=job_id)
        return self._stub.GetJob(request, metadata=self._metadata, timeout=CALL_TIMEOUT_SECONDS).job

    def incidents(self, job_id: str) -> Iterator[scheduler_pb2.Incident]:
        """Incidents of a job, or of all with an empty id, newest first."""
        for page in self._pages(self._stub.ListIncidents, scheduler_pb2.ListIncidentsRequest(job_id=job_id)):
            yield from page.incidents

    def verdicts(self, job_id: str) -> Iterator[detector_pb2.Verdict]:
        """Verdicts of a job, or of all with an empty id, newest first."""
        for page in self._pages(self._stub.ListVerdicts, scheduler_pb2.ListVerdictsRequest(job_id=job_id)):
            yield from page.verdicts

    def plans(self, job_id: str) -> Iterator[scheduler_pb2.Plan]:
        """Plans of a job, or of all with an empty id, newest first."""
        for page in self._pages(self._stub.ListPlans, scheduler_pb2.ListPlansRequest(job_id=job_id)):
            yield from page.plans

    def require_job(self, job_id: str) -> None:
        """Nothing is known of a job: that is an answer only if there is such a job, or all were meant (an empty id).

        Raises:
            CommandError: There is none.
        """
        if job_id:
            self.job(job_id)

    def _pages(self, call: Callable[..., Any], request: Any) -> Iterator[Any]:
        """Page after page of a list call, until there is no next one."""
        request.page_size = PAGE_SIZE
        while True:
            response = call(request, metadata=self._metadata, timeout=CALL_TIMEOUT_SECONDS)
            yield response
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    def explain_plan(self, plan_id: str) -> scheduler_pb2.ExplainPlanResponse:
        """Why a plan was chosen."""
        request = scheduler_pb2.ExplainPlanRequest(plan_id=plan_id)
        return self._stub.ExplainPlan(request, metadata=self._metadata, timeout=CALL_TIMEOUT_SECONDS)

    def watch_job(self, job_id: str, *, lost: Callable[[], None]) -> Iterator[scheduler_pb2.WatchJobResponse]:
        """What happens to a job from now on, until it ends.

        A scheduler that goes away is waited for, once it has told something: its first message then is the job again.

        Args:
            job_id: Of the job.
            lost: Called each time that it has gone away.
        """
        request = scheduler_pb2.WatchJobRequest(job_id=job_id)
        known = away = False
        while True:
            try:
                for response in self._stub.WatchJob(request, metadata=self._metadata, wait_for_ready=known):
                    known, away = True, False
                    yield response
                return
            except grpc.RpcError as error:
                if not known or cast(grpc.Call, error).code() not in _AWAY:
                    raise
            if not away:
                away = True
                lost()
            time.sleep(_RETRY_SECONDS)


@contextmanager
def fleet_client(context: typer.Context) -> Iterator[FleetClient]:
    """A client with the address and token of the session; refusals of the API become command errors.

    Raises:
        CommandError: No usable address or token is known, or a call was refused.
    """
    address = setting(context, "EVENKEEL_FLEET_ADDRESS")
    token = os.environ.get("EVENKEEL_FLEET_TOKEN") or setting(context, "EVENKEEL_FLEET_TOKEN")
    if not (token.isascii() and token.isprintable()):
        raise CommandError("EVENKEEL_FLEET_TOKEN holds characters that no call can carry", status=ExitStatus.USAGE)
    try:
        ca_file = checked_fleet_ca_file(os.environ.get("EVENKEEL_FLEET_CA_FILE", ""))
    except ValueError as error:
        raise CommandError(
            str(error),
            next_step="give the file that signed the API's certificate, or unset it",
            status=ExitStatus.USAGE,
        ) from error
    client = FleetClient(address, token, ca_file)
    try:
        yield client
    except grpc.RpcError as error:
        raise command_error(error, address, ca_file) from error
    finally:
        client.close()


def command_error(error: grpc.RpcError, address: str, ca_file: str = "") -> CommandError:
    """What a refused call means for a person."""
    # Errors of calls are calls, which the type stubs do not say.
    call = cast(grpc.Call, error)
    code, details = call.code(), call.details() or "no details"
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return CommandError(
            f"the fleet API at {address} does not answer: {details}",
            next_step=fleet_tls_advice(details, ca_file) or "evenkeel stack status, or check EVENKEEL_FLEET_ADDRESS",
            status=ExitStatus.UNHEALTHY,
        )
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return CommandError(
            f"the fleet API refuses the token: {details}",
            next_step="check EVENKEEL_FLEET_TOKEN",
            status=ExitStatus.USAGE,
        )
    if code is grpc.StatusCode.NOT_FOUND:
        next_step = "evenkeel plans list" if "plan" in details else "evenkeel jobs list"
        return CommandError(details, next_step=next_step, status=ExitStatus.USAGE)
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return CommandError(
            details,
            next_step="another id, or for a job that runs: its own EVENKEEL_JOB_TOKEN and as many ranks as before",
            status=ExitStatus.USAGE,
        )
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return CommandError(details, status=ExitStatus.USAGE)
    return CommandError(f"the fleet API answers {code.name}: {details}")
