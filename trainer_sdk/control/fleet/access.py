"""One job's way to the fleet API: where it is, who calls, and the calls that launchers and ranks make."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.tls import fleet_channel, fleet_tls_advice

CALL_TIMEOUT_SECONDS = 3.0
_SETTINGS = ("FLEET_ADDRESS", "FLEET_CA_FILE", "JOB_TOKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAccess:
    """Each call blocks for :data:`CALL_TIMEOUT_SECONDS` at most, and gives what went wrong, or None. Any thread.

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

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], job_id: str) -> Self:
        """As the environment says; without an address and a token nobody is to be called."""
        address, ca_file, job_token = (settings.get(f"EVENKEEL_{each}", "") for each in _SETTINGS)
        return cls(address=address, ca_file=ca_file, job_id=job_id, job_token=job_token)

    def register_job(self, request: pb.RegisterJobRequest, fleet_token: str) -> grpc.RpcError | None:
        """Make the job known; the same request twice is one job."""
        return self._call(lambda stub: stub.RegisterJob, request, fleet_token)

    def register_ranks(self, processes: Sequence[pb.RankProcess]) -> grpc.RpcError | None:
        """Make processes of its ranks known; the same processes twice are registered once."""
        request = pb.RegisterRanksRequest(job_id=self.job_id, processes=processes)
        return self._call(lambda stub: stub.RegisterRanks, request, self.job_token)

    def report_exits(self, exits: Sequence[pb.RankExit]) -> grpc.RpcError | None:
        """Processes of its ranks have ended; the same exits twice are told once."""
        request = pb.ReportExitsRequest(job_id=self.job_id, exits=exits)
        return self._call(lambda stub: stub.ReportExits, request, self.job_token)

    def finish_job(self, failure: str) -> grpc.RpcError | None:
        """The job has ended; ``failure`` is why it failed, empty when its work is done or somebody ended it."""
        request = pb.FinishJobRequest(job_id=self.job_id, failure=failure)
        return self._call(lambda stub: stub.FinishJob, request, self.job_token)

    def channel(self) -> grpc.Channel:
        """A channel for calls that last; see :func:`~evenkeel.trainer_sdk.control.tls.fleet_channel`."""
        return fleet_channel(self.address, self.ca_file)

    def words(self, error: grpc.RpcError) -> str:
        """What went wrong, for a person, with what to do about it."""
        details = error.details() or "no details"
        advice = fleet_tls_advice(details, self.ca_file)
        return f"{error.code().name}: {details}" + (f"; {advice}" if advice else "")

    def _call(
        self, method: Callable[[scheduler_pb2_grpc.FleetServiceStub], Any], request: Message, token: str
    ) -> grpc.RpcError | None:
        # A fresh channel each time: one that failed would sit in gRPC's own back-off, which grows to minutes.
        with self.channel() as channel:
            try:
                method(scheduler_pb2_grpc.FleetServiceStub(channel))(
                    request, timeout=CALL_TIMEOUT_SECONDS, metadata=(("authorization", f"Bearer {token}"),)
                )
            except grpc.RpcError as error:
                return error
        return None
