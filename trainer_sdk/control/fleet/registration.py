"""Makes a rank known to the fleet API from a background thread; training never waits for it."""

import logging
import os
import threading
import time
from collections.abc import Callable

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import CALL_TIMEOUT_SECONDS, FleetAccess
from evenkeel.trainer_sdk.emit.batch import Source

_LOOK_SECONDS = 0.1
_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 5.0
_REFUSED_BACK_OFF_SECONDS = 30.0  # a setting has to change first

_logger = logging.getLogger("evenkeel.control")


class Registration:
    """Registers the rank, with retries for ever, and again when no scheduler has watched it for a while.

    A scheduler that restarts knows its ranks from history; one that lost history learns them here.

    Args:
        access: The job's way to the fleet API.
        source: Who registers.
        controller_address: ``host:port`` of the rank's controller.
        is_watched: Whether a scheduler holds a Watch stream to the controller now.
        check_interval_seconds: How often to look whether somebody watches.
        security: What the controller asks of connections.
        can_reshape: False for a training loop that cannot apply plans.
        after_seconds: Somebody else may register it; if no scheduler watches it by then, it does so itself.

    Attributes:
        process: What it is registered as.
    """

    def __init__(
        self,
        access: FleetAccess,
        *,
        source: Source,
        controller_address: str,
        is_watched: Callable[[], bool],
        check_interval_seconds: float = 5.0,
        security: "pb.ControllerSecurity.ValueType" = pb.CONTROLLER_SECURITY_PLAIN,
        can_reshape: bool = True,
        after_seconds: float = 0.0,
    ) -> None:
        self._access = access
        self.process = pb.RankProcess(
            rank=source.rank,
            incarnation=source.incarnation,
            node=source.node,
            device=source.device,
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
        self._thread.join(CALL_TIMEOUT_SECONDS + 0.5)

    def _run(self) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        told_unwatched = False
        warned: set[grpc.StatusCode] = set()
        known = self._is_watched_soon()
        while not self._stopped.is_set():
            error = None if known else self._access.register_ranks([self.process])
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
        _logger.warning(
            "the fleet API at %s did not register rank %d (%s); trying again, training goes on",
            self._access.address,
            self.process.rank,
            self._access.words(error),
        )

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
