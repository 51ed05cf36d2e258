"""Makes a rank known to the fleet API from a background thread; training never waits for it."""

import logging
import threading
from collections.abc import Callable

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import CALL_TIMEOUT_SECONDS, FleetAccess

_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 5.0
_REFUSED_BACK_OFF_SECONDS = 30.0  # a setting has to change first

_JOB_UNKNOWN = frozenset((grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED))

_logger = logging.getLogger("evenkeel.control")


class Registration:
    """Registers the rank, with retries for ever, and again when no scheduler has watched it for a while.

    A scheduler that restarts knows its ranks from history; one that lost history learns them here.

    Args:
        access: The job's way to the fleet API.
        process: What registers.
        is_watched: Whether a scheduler holds a Watch stream to the controller now.
        check_interval_seconds: How often to look whether somebody watches.
        is_launched: A launcher makes the job known, perhaps later than this, and says where it is refused.
    """

    def __init__(
        self,
        access: FleetAccess,
        process: pb.RankProcess,
        *,
        is_watched: Callable[[], bool],
        check_interval_seconds: float = 5.0,
        is_launched: bool = False,
    ) -> None:
        self._access = access
        self._process = process
        self._is_watched = is_watched
        self._no_news = _JOB_UNKNOWN if is_launched else frozenset()
        self._check_interval_seconds = check_interval_seconds
        self._stopped = threading.Event()
        self._told_unwatched = False
        self._thread = threading.Thread(target=self._run, name="evenkeel-registration", daemon=True)

    def start(self) -> None:
        """Begin to register; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the background thread; returns within one call's timeout."""
        self._stopped.set()
        self._thread.join(CALL_TIMEOUT_SECONDS + 0.5)

    def _run(self) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        warned = set(self._no_news)  # each reason is told once: a refusal may come after calls that took too long
        while not self._stopped.is_set():
            error = self._access.register_rank(self._process)
            if error is None:
                self._wait_while_watched()
                back_off_seconds, warned = _FIRST_BACK_OFF_SECONDS, set()  # that the job was known is news
                continue
            if error.code() not in warned:
                warned.add(error.code())
                _logger.warning(
                    "the fleet API at %s did not register rank %d (%s); trying again, training goes on",
                    self._access.address,
                    self._process.rank,
                    self._access.words(error),
                )
            refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            self._stopped.wait(_REFUSED_BACK_OFF_SECONDS if refused else back_off_seconds)
            back_off_seconds = min(back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)

    def _wait_while_watched(self) -> None:
        """Return once nobody has watched the rank for two looks in a row; where nobody ever did, that is said once."""
        unwatched = 0
        watched = False
        while unwatched < 2 and not self._stopped.wait(self._check_interval_seconds):
            unwatched = 0 if self._is_watched() else unwatched + 1
            watched = watched or unwatched == 0
        if not (watched or self._told_unwatched or self._stopped.is_set()):
            _logger.warning(
                "rank %d is registered, but the scheduler opens no stream to its controller at %s; its log says why: "
                "it must reach that address, and with TLS each side trust the other's certificate; training goes on",
                self._process.rank,
                self._process.address,
            )
        self._told_unwatched = not watched
