"""All that a launcher tells the fleet API: nothing where there is none.

One thread tells it, until it is heard: first of the job, then how processes have ended. Nobody who trains waits for it.
"""

import logging
import threading
import time

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import CALL_TIMEOUT_SECONDS, FleetAccess
from evenkeel.trainer_sdk.control.fleet.last_words import one_line

_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 2.0
_ENDS_TOGETHER_SECONDS = 0.03
"""An error of the program ends all ranks at about the same time: they are told in one call, as one incident."""
_LAST_WORDS_SECONDS = 5.0
"""How long the end of the job waits until the fleet API has heard of the ends of its processes."""
_MOST_AT_ONCE = 1000
_TAKEN = grpc.StatusCode.ALREADY_EXISTS
_FOR_GOOD = frozenset(
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    )
)
"""What never works."""

_logger = logging.getLogger("evenkeel.launcher")


class FleetSide:
    """Any thread; only :meth:`stop` blocks.

    Args:
        access: The way to the fleet API.
        job: The job, to be made known; None where others do that.
        fleet_token: With which.
    """

    def __init__(self, access: FleetAccess, *, job: pb.RegisterJobRequest | None = None, fleet_token: str = "") -> None:
        self._access, self._job, self._fleet_token = access, job, fleet_token
        self._changed = threading.Condition()
        self._is_known = job is None
        self._is_refused = self._is_ending = False
        self._gives_up_at_seconds = float("inf")
        self._exits: list[pb.RankExit] = []
        self._warned: set[grpc.StatusCode] = set()
        self._thread = threading.Thread(target=self._run, name="evenkeel-fleet-side", daemon=True)

    def start(self) -> None:
        """Before any rank starts; returns at once."""
        if self._access.address:
            self._thread.start()

    def failed(self, one: pb.RankExit) -> None:
        """A process has ended that should not have."""
        with self._changed:
            self._exits.append(one)
            self._changed.notify_all()

    def stop(self, failure: str = "", *, is_over: bool) -> None:
        """Before the ranks are ended, so that nobody takes that for their death; blocks for some seconds at most.

        Args:
            failure: Why the job failed; empty when its work is done or somebody ended it.
            is_over: The job ends, and not this host's part of it.
        """
        if self._thread.ident is None:
            return
        with self._changed:
            self._is_ending, self._gives_up_at_seconds = True, time.monotonic() + _LAST_WORDS_SECONDS
            self._changed.notify_all()
        self._thread.join(_LAST_WORDS_SECONDS + CALL_TIMEOUT_SECONDS)
        is_to_finish = self._job is not None and self._is_known and is_over
        error = self._access.finish_job(one_line(failure)) if is_to_finish else None
        if error is not None:
            why = error.code().name
            _logger.warning("the fleet API was not told that job %s ended: %s", self._access.job_id, why)

    # ---- the thread

    def _run(self) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        while self._has_news():
            if self._tell_of_ends() if self._is_known else self._tell_of_job():
                back_off_seconds = _FIRST_BACK_OFF_SECONDS
                continue
            if time.monotonic() > self._gives_up_at_seconds:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._is_ending and not self._exits, back_off_seconds)
            back_off_seconds = min(back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)

    def _has_news(self) -> bool:
        """Waits for something to tell; False when nothing is to come, or nobody hears it."""
        with self._changed:
            self._changed.wait_for(lambda: self._exits or self._is_ending or not self._is_known)
            return not self._is_refused and (bool(self._exits) or not self._is_ending)

    def _tell_of_job(self) -> bool:
        """False if it is to be told again, after a pause."""
        assert self._job is not None, "a job that others make known is known"
        error = self._access.register_job(self._job, self._fleet_token)
        if error is None:
            self._is_known = True
            return True
        if error.code() in (_TAKEN, grpc.StatusCode.INVALID_ARGUMENT):
            self._is_refused = True
            advice = "; give this run another EVENKEEL_JOB_ID" if error.code() is _TAKEN else ""
            words = "job %s runs unwatched: the fleet API refuses it: %s%s"
            _logger.error(words, self._access.job_id, error.details(), advice)
            return True
        # Each reason once: a refusal may come after calls that nobody answered.
        if error.code() not in self._warned:
            self._warned.add(error.code())
            _logger.warning(
                "the fleet API at %s did not register job %s (%s); trying again, the job runs meanwhile",
                self._access.address,
                self._access.job_id,
                self._access.words(error),
            )
        return False

    def _tell_of_ends(self) -> bool:
        """Likewise."""
        time.sleep(_ENDS_TOGETHER_SECONDS)
        exits: dict[int, pb.RankExit] = {}
        with self._changed:
            for one in self._exits[:_MOST_AT_ONCE]:
                if one.rank in exits:  # its next process; a call names each rank once
                    break
                exits[one.rank] = one
        error = self._access.report_exits(list(exits.values()))
        is_settled = error is None or error.code() in _FOR_GOOD
        if error is not None and (is_settled or time.monotonic() > self._gives_up_at_seconds):
            why = error.details() or error.code()
            _logger.warning("the fleet API was not told how ranks %s ended: %s", sorted(exits), why)
        if is_settled:
            with self._changed:
                del self._exits[: len(exits)]
        return is_settled
