"""Tells the fleet API how processes ended."""

from collections.abc import Sequence

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.tls import fleet_channel

CALL_TIMEOUT_SECONDS = 3.0


def report_exits(
    fleet_address: str, fleet_ca_file: str, job_id: str, job_token: str, exits: Sequence[pb.RankExit]
) -> grpc.RpcError | None:
    """One call; blocks for :data:`CALL_TIMEOUT_SECONDS` at most. The same exits twice are told once.

    Args:
        fleet_address: ``host:port`` of the fleet API.
        fleet_ca_file: PEM file with the certificates that the API's is signed by; empty = no TLS.
        job_id: Job.
        job_token: Its token.
        exits: Processes of its ranks that have ended.

    Returns:
        What went wrong; None when it was told.
    """
    with fleet_channel(fleet_address, fleet_ca_file) as channel:
        try:
            scheduler_pb2_grpc.FleetServiceStub(channel).ReportExits(
                pb.ReportExitsRequest(job_id=job_id, exits=exits),
                timeout=CALL_TIMEOUT_SECONDS,
                metadata=(("authorization", f"Bearer {job_token}"),),
            )
        except grpc.RpcError as error:
            return error
    return None
