"""Makes a rank known to the fleet API from a background thread; training never waits for it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.tls import fleet_channel, fleet_tls_advice

_CALL_TIMEOUT_SECONDS = 3.0
_LOOK_SECONDS = 0.1
_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 5.0
_REFUSED_BACK_OFF_SECONDS = 30.0  # a setting has to change first

_logger = logging.getLogger("evenkeel.control")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """Which process of which rank this is, and where it runs."""

    job_id: str
    rank: int
    incarnation: int
    node: str
    device: str


class Registration:
    """Registers the rank, with retries for ever, and again when no scheduler has watched it for a while.

    A scheduler that restarts knows its ranks from history; one that lost history learns them here.

    Args:
        fleet_address: ``host:port`` of the fleet API.
        job_token: Token of the job.
        identity: Who registers.
        controller_address: ``host:port`` of the rank's controller.
        is_watched: Whether a scheduler holds a Watch stream to the controller now.
        check_interval_seconds: How often to look whether somebody watches.
        security: What the controller asks of connections.
        can_reshape: False for a training loop that cannot apply plans.
        after_seconds: Somebody else may register it; if no scheduler watches it by then, it does so itself.
        fleet_ca_file: PEM file with the certificates that the fleet API's is signed by; empty = no TLS to it.

    Attributes:
        process: What it is registered as.
    """

    def __init__(
        self,
        fleet_address: str,
        *,
        job_token: str,
        identity: RankIdentity,
        controller_address: str,
        is_watched: Callable[[], bool],
        check_interval_seconds: float = 5.0,
        security: "pb.ControllerSecurity.ValueType" = pb.CONTROLLER_SECURITY_PLAIN,
        fleet_ca_file: str = "",
        can_reshape: bool = True,
        after_seconds: float = 0.0,
    ) -> None:
        self._fleet_address = fleet_address
        self._fleet_ca_file = fleet_ca_file
        self._job_id, self._job_token = identity.job_id, job_token
        self.process = pb.RankProcess(
            rank=identity.rank,
            incarnation=identity.incarnation,
            node=identity.node,
            device=identity.device,
            address=controller_address,
            process_id=os.getpid(),
            controller_security=security,
            cannot_reshape=not can_reshape,
        )
        self._is_watched = is_watched
        self._after_seconds = after_seconds
        self._check_interval_seconds = check_interval_seconds
        self._stopped = threading.Event()
        self._registered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenkeel-registration", daemon=True)

    def start(self) -> None:
        """Begin to register; returns at once."""
        self._thread.start()

    def wait_until_registered(self, timeout_seconds: float) -> bool:
        """Whether the fleet API has acknowledged the rank at least once within the timeout."""
        return self._registered.wait(timeout_seconds)

    def stop(self) -> None:
        """End the background thread; returns within one call's timeout."""
        self._stopped.set()
        self._thread.join(_CALL_TIMEOUT_SECONDS + 0.5)

    def _run(self) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        told_unwatched = False
        warned: set[grpc.StatusCode] = set()
        known = self._is_watched_soon()
        while not self._stopped.is_set():
            error = None if known else self._register()
            if error is None:
                known = False
                self._registered.set()
                back_off_seconds, warned = _FIRST_BACK_OFF_SECONDS, set()
                told_unwatched = self._wait_while_watched(told_unwatched)
                continue
            # NOT_FOUND is no news: the launcher registers the job at the same time. Each other reason is told once:
            # a refusal may come after calls that took too long.
            if error.code() not in {grpc.StatusCode.NOT_FOUND, *warned}:
                warned.add(error.code())
                self._warn(error)
            refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            self._stopped.wait(_REFUSED_BACK_OFF_SECONDS if refused else back_off_seconds)
            back_off_seconds = min(back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)

    def _warn(self, error: grpc.RpcError) -> None:
        details = error.details() or "no details"
        advice = fleet_tls_advice(details, self._fleet_ca_file)
        _logger.warning(
            "the fleet API at %s did not register rank %d (%s: %s%s); trying again, training goes on",
            self._fleet_address,
            self.process.rank,
            error.code().name,
            details,
            f"; {advice}" if advice else "",
        )

    def _register(self) -> grpc.RpcError | None:
        return register_ranks(self._fleet_address, self._fleet_ca_file, self._job_id, self._job_token, [self.process])

    def _is_watched_soon(self) -> bool:
        """Whether somebody else has registered the rank: a scheduler watches it within the time."""
        deadline = time.monotonic() + self._after_seconds
        while time.monotonic() < deadline and not self._stopped.wait(_LOOK_SECONDS):
            if self._is_watched():
                return True
        return False

    def _wait_while_watched(self, told_unwatched: bool) -> bool:
        """Return once nobody has watched the rank for two looks in a row; whether it was said that nobody ever did."""
        unwatched = 0
        watched = False
        while unwatched < 2 and not self._stopped.wait(self._check_interval_seconds):
            unwatched = 0 if self._is_watched() else unwatched + 1
            watched = watched or unwatched == 0
        if not watched and not told_unwatched and not self._stopped.is_set():
            told_unwatched = True
            _logger.warning(
                "rank %d is registered, but the scheduler opens no stream to its controller at %s; its log says why: "
                "it must reach that address, and with TLS each side trust the other's certificate; training goes on",
                self.process.rank,
                self.process.address,
            )
        return told_unwatched and not watched


def register_ranks(
    fleet_address: str, fleet_ca_file: str, job_id: str, job_token: str, processes: Sequence[pb.RankProcess]
) -> grpc.RpcError | None:
    """One call; blocks for its timeout at most. The same processes twice are registered once.

    Args:
        fleet_address: ``host:port`` of the fleet API.
        fleet_ca_file: PEM file with the certificates that the API's is signed by; empty = no TLS.
        job_id: Job.
        job_token: Its token.
        processes: Of its ranks.

    Returns:
        What went wrong; None when they are registered.
    """
    # A fresh channel each time: one that failed would sit in gRPC's own back-off, which grows to minutes.
    with fleet_channel(fleet_address, fleet_ca_file) as channel:
        try:
            scheduler_pb2_grpc.FleetServiceStub(channel).RegisterRanks(
                pb.RegisterRanksRequest(job_id=job_id, processes=processes),
                timeout=_CALL_TIMEOUT_SECONDS,
                metadata=(("authorization", f"Bearer {job_token}"),),
            )
        except grpc.RpcError as error:
            return error
    return None
