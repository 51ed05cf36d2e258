"""One job's way to the fleet API: where it is, who calls, and the calls that launchers and ranks make."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.tls import fleet_channel, fleet_tls_advice

CALL_TIMEOUT_SECONDS = 3.0
_SHORT_SECONDS = 1.0
_Method = Callable[[scheduler_pb2_grpc.FleetServiceStub], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAccess:
    """Each call blocks for :data:`CALL_TIMEOUT_SECONDS` at most; those that tell give what went wrong. Any thread.

    Attributes:
        address: ``host:port`` of the fleet API.
        ca_file: PEM file with the certificates that the API's is signed by; empty = no TLS.
        job_id: Job.
        job_token: Its token.
    """

    address: str
    ca_file: str = ""
    job_id: str
    job_token: str = field(repr=False)

    def register_job(self, request: pb.RegisterJobRequest, fleet_token: str) -> grpc.RpcError | None:
        """Make the job known; the same request twice is one job."""
        return self._tell(lambda stub: stub.RegisterJob, request, fleet_token)

    def register_rank(self, process: pb.RankProcess) -> grpc.RpcError | None:
        """Make a process of one of its ranks known; the same process twice is registered once."""
        request = pb.RegisterRanksRequest(job_id=self.job_id, processes=[process])
        return self._tell(lambda stub: stub.RegisterRanks, request, self.job_token)

    def report_exits(self, exits: Sequence[pb.RankExit]) -> grpc.RpcError | None:
        """Processes of its ranks have ended; the same exits twice are told once."""
        request = pb.ReportExitsRequest(job_id=self.job_id, exits=exits)
        return self._tell(lambda stub: stub.ReportExits, request, self.job_token)

    def finish_job(self, failure: str) -> grpc.RpcError | None:
        """The job has ended; ``failure`` is why it failed, empty when its work is done or somebody ended it."""
        request = pb.FinishJobRequest(job_id=self.job_id, failure=failure)
        return self._tell(lambda stub: stub.FinishJob, request, self.job_token)

    def standing(self) -> str:
        """What the job's ranks do, as the scheduler sees it; empty where no scheduler says anything."""
        if not self.address:
            return ""
        try:
            request = pb.GetJobRequest(job_id=self.job_id)
            answer = self._ask(lambda stub: stub.GetJob, request, self.job_token, timeout_seconds=_SHORT_SECONDS)
        except (grpc.RpcError, OSError, ValueError):
            return ""
        return str(answer.job.standing.summary)

    def words(self, error: grpc.RpcError) -> str:
        """What went wrong, for a person, with what to do about it."""
        details = error.details() or "no details"
        advice = fleet_tls_advice(details, self.ca_file)
        return f"{error.code().name}: {details}" + (f"; {advice}" if advice else "")

    def _tell(self, method: _Method, request: Message, token: str) -> grpc.RpcError | None:
        try:
            self._ask(method, request, token)
        except grpc.RpcError as error:
            return error
        return None

    def _ask(self, method: _Method, request: Message, token: str, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> Any:
        # A fresh channel each time: one that failed would sit in gRPC's own back-off, which grows to minutes.
        with fleet_channel(self.address, self.ca_file) as channel:
            call = method(scheduler_pb2_grpc.FleetServiceStub(channel))
            return call(request, timeout=timeout_seconds, metadata=(("authorization", f"Bearer {token}"),))
