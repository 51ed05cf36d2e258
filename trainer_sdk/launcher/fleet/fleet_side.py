"""All that a launcher tells the fleet API, and hears of it: nothing where there is none.

One thread tells it, until it is heard: first of the job, then how processes have ended and which have begun. Nobody who
trains waits for it.
"""

import logging
import threading
import time

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import CALL_TIMEOUT_SECONDS, FleetAccess
from evenkeel.trainer_sdk.control.fleet.last_words import one_line
from evenkeel.trainer_sdk.launcher.fleet.rank_notes import RankNotes
from evenkeel.trainer_sdk.launcher.fleet.standing_watch import StandingWatch

_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 2.0
_ENDS_TOGETHER_SECONDS = 0.03
"""An error of the program ends all ranks at about the same time: they are told in one call, as one incident."""
_UP_TOGETHER_SECONDS = 0.5
"""How long the first that is up waits for the others, on a machine where they come up one by one."""
_NEVER_UP_SECONDS = 9.0
_LOOK_SECONDS = 0.02
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
"""What never works. A rank that is refused so is to say so itself, which tries for ever."""

_logger = logging.getLogger("evenkeel.launcher")


class FleetSide:
    """Any thread; only :meth:`stop` and :meth:`wait_until_registered` block.

    Args:
        access: The way to the fleet API.
        job: The job, to be made known; None where others do that.
        fleet_token: With which.
        notes: What ranks leave, to be registered; None where they do that themselves.
    """

    def __init__(
        self,
        access: FleetAccess,
        *,
        job: pb.RegisterJobRequest | None = None,
        fleet_token: str = "",
        notes: RankNotes | None = None,
    ) -> None:
        self._access, self._job, self._fleet_token, self._notes = access, job, fleet_token, notes
        self._standing = StandingWatch(access)
        self._changed = threading.Condition()
        self._is_known = job is None
        self._is_refused = self._is_ending = False
        self._gives_up_at_seconds = float("inf")
        self._exits: list[pb.RankExit] = []
        self._awaited: dict[int, tuple[int, float]] = {}  # incarnation, and until when, by rank
        self._up_since_seconds: float | None = None
        self._warned: set[grpc.StatusCode] = set()
        self._thread = threading.Thread(target=self._run, name="evenkeel-fleet-side", daemon=True)

    @property
    def standing(self) -> str:
        """What the ranks do, as the scheduler sees it; empty while no scheduler says anything."""
        return self._standing.summary

    def start(self) -> None:
        """Before any rank starts; returns at once."""
        if self._access.address:
            if self._notes is not None:
                self._notes.clear()
            self._thread.start()
            if self._job is not None:
                self._standing.start()

    def wait_until_registered(self, timeout_seconds: float) -> bool:
        """Whether the fleet API has acknowledged the job within the timeout."""
        with self._changed:
            return bool(self._access.address) and self._changed.wait_for(lambda: self._is_known, timeout_seconds)

    def began(self, rank: int, incarnation: int) -> None:
        """A rank has a new process, which will leave a note and is to be registered."""
        with self._changed:
            self._awaited[rank] = incarnation, time.monotonic() + _NEVER_UP_SECONDS
            self._changed.notify_all()

    def ended(self, rank: int, incarnation: int) -> None:
        """A process has ended: it need not be registered any more."""
        with self._changed:
            if self._awaited.get(rank, (None, 0.0))[0] == incarnation:
                del self._awaited[rank]
        if self._notes is not None:
            self._notes.drop(rank, incarnation)

    def failed(self, one: pb.RankExit) -> None:
        """It should not have ended."""
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
        if self._job is not None:
            error = self._access.finish_job(one_line(failure)) if is_over and self._is_known else None
            if error is not None:
                why = error.code().name
                _logger.warning("the fleet API was not told that job %s ended: %s", self._access.job_id, why)
            self._standing.stop()

    # ---- the thread

    def _run(self) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        while self._has_news():
            if self._tell():
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
            self._changed.wait_for(lambda: self._exits or self._awaited or self._is_ending or not self._is_known)
            return not self._is_refused and (bool(self._exits) or not self._is_ending)

    def _tell(self) -> bool:
        """Tell what comes first; False if it is to be told again, after a pause."""
        if not self._is_known:
            return self._tell_of_job()
        return self._tell_of_ends() if self._exits else self._tell_of_beginnings()

    def _tell_of_job(self) -> bool:
        assert self._job is not None, "a job that others make known is known"
        error = self._access.register_job(self._job, self._fleet_token)
        if error is None:
            with self._changed:
                self._is_known = True
                self._changed.notify_all()
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

    def _tell_of_beginnings(self) -> bool:
        processes = self._up()[:_MOST_AT_ONCE]
        if not processes:
            with self._changed:
                self._changed.wait_for(lambda: self._exits or self._is_ending, _LOOK_SECONDS)
            return True
        error = self._access.register_ranks(processes)
        if error is not None and error.code() not in _FOR_GOOD:
            return False
        for one in processes:
            self.ended(one.rank, one.incarnation)
        return True

    def _up(self) -> list[pb.RankProcess]:
        """Those that are awaited and up; nobody while others may be so in a moment."""
        assert self._notes is not None, "who awaits ranks has their notes"
        with self._changed:
            awaited = dict(self._awaited)
        found, now = [], time.monotonic()
        for rank, (incarnation, until_seconds) in awaited.items():
            note = self._notes.read(rank, incarnation)
            if note is not None:
                found.append(note)
            if now > until_seconds:
                self.ended(rank, incarnation)
        self._up_since_seconds = (self._up_since_seconds or now) if found else None
        may_wait = now < (self._up_since_seconds or now) + _UP_TOGETHER_SECONDS
        return [] if len(found) < len(awaited) and may_wait else found
