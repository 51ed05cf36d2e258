"""What the scheduler says that a job's ranks do, for the launcher to show."""

import threading
from collections.abc import Callable

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.fleet.access import FleetAccess

_AGAIN_SECONDS = 1.0


class StandingWatch:
    """Follows one job at the fleet API from a background thread, for as long as the launcher runs.

    Args:
        access: The job's way to the fleet API.
    """

    def __init__(self, access: FleetAccess) -> None:
        self._access = access
        self._summary = ""
        self._stopped = threading.Event()
        self._cancel: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="evenkeel-standing", daemon=True)

    @property
    def summary(self) -> str:
        """The newest word; empty while there is none, or no way to a scheduler."""
        return self._summary

    def start(self) -> None:
        """Begin to follow; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more."""
        self._stopped.set()
        self._cancel()
        if self._thread.ident is not None:
            self._thread.join(_AGAIN_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._access.channel() as channel:
                call = scheduler_pb2_grpc.FleetServiceStub(channel).WatchJob(
                    pb.WatchJobRequest(job_id=self._access.job_id),
                    metadata=(("authorization", f"Bearer {self._access.job_token}"),),
                )
                self._cancel = call.cancel
                try:
                    for response in call:
                        if response.WhichOneof("happened") == "job":
                            self._summary = response.job.standing.summary
                except grpc.RpcError:
                    self._summary = ""
            self._stopped.wait(_AGAIN_SECONDS)
