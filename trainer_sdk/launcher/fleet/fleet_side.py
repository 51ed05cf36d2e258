"""All that a launcher tells the fleet API of one job, and hears of it: nothing for a job without one.

The job is made known from a background thread; ranks never wait for it.
"""

import logging
import threading

import grpc

from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.layouts.model import ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import CALL_TIMEOUT_SECONDS
from evenkeel.trainer_sdk.control.fleet.last_words import one_line
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.fleet.exit_reports import ExitReports
from evenkeel.trainer_sdk.launcher.fleet.rank_registrations import RankRegistrations
from evenkeel.trainer_sdk.launcher.fleet.standing_watch import StandingWatch

_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 5.0
_TAKEN = grpc.StatusCode.ALREADY_EXISTS

_logger = logging.getLogger("evenkeel.launcher")


class FleetSide:
    """Any thread; only :meth:`stop` and :meth:`wait_until_registered` block.

    Args:
        spec: The job.
        model: The model's costs, for the planner; needed when the job registers at a fleet API.

    Raises:
        ValueError: The job registers and has no model.
    """

    def __init__(self, spec: JobSpec, model: ModelSpec | None) -> None:
        self._is_there = bool(spec.fleet_address)
        self._spec, self._access = spec, spec.access
        self._request = pb.RegisterJobRequest(
            job_id=spec.job_id, tenant=spec.tenant, name=spec.name or spec.job_id, job_token=spec.job_token
        )
        if self._is_there:
            if model is None:
                raise ValueError(
                    "a job that registers at a fleet API needs a model spec: the planner works with its costs"
                )
            self._request.model.CopyFrom(model_to_proto(model))
            self._request.layout.CopyFrom(layout_to_proto(spec.layout))
        self._exits = ExitReports(self._access)
        self._ranks = RankRegistrations(self._access, spec.run_dir)
        self._standing = StandingWatch(self._access)
        self._stopped = threading.Event()
        self._registered = threading.Event()
        self._thread = threading.Thread(target=self._register, name="evenkeel-job-registration", daemon=True)

    @property
    def standing(self) -> str:
        """What the ranks do, as the scheduler sees it; empty while no scheduler says anything."""
        return self._standing.summary

    def start(self) -> None:
        """Before any rank starts; returns at once."""
        if self._is_there:
            self._thread.start()
            self._exits.start()
            self._ranks.start()
            self._standing.start()

    def wait_until_registered(self, timeout_seconds: float) -> bool:
        """Whether the fleet API has acknowledged the job within the timeout."""
        return self._is_there and self._registered.wait(timeout_seconds)

    def began(self, rank: int, incarnation: int) -> None:
        """A rank has a new process, which is to be registered."""
        if self._is_there:
            self._ranks.expect(rank, incarnation)

    def ended(self, rank: int, incarnation: int) -> None:
        """A process has ended: it need not be registered any more."""
        if self._is_there:
            self._ranks.forget(rank, incarnation)

    def failed(self, one: pb.RankExit) -> None:
        """It should not have ended."""
        if self._is_there:
            self._exits.tell(one)

    def stop(self, failure: str = "", *, is_over: bool) -> None:
        """Before the ranks are ended, so that nobody takes that for their death; blocks for some seconds at most.

        Args:
            failure: Why the job failed; empty when its work is done or somebody ended it.
            is_over: The job ends, and not this host's part of it.
        """
        if not self._is_there:
            return
        self._ranks.stop()
        self._exits.stop()
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(CALL_TIMEOUT_SECONDS + 0.5)
        error = self._access.finish_job(one_line(failure)) if is_over and self._registered.is_set() else None
        if error is not None:
            why = error.code().name
            _logger.warning("the fleet API was not told that job %s ended: %s", self._spec.job_id, why)
        self._standing.stop()

    # ---- the job, on a thread of its own

    def _register(self) -> None:
        """Once, with retries for ever."""
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        warned: set[grpc.StatusCode] = set()
        while not self._stopped.is_set():
            error = self._access.register_job(self._request, self._spec.fleet_token)
            if error is None:
                self._registered.set()
                return
            if error.code() in (_TAKEN, grpc.StatusCode.INVALID_ARGUMENT):
                advice = "; give this run another EVENKEEL_JOB_ID" if error.code() is _TAKEN else ""
                words = "job %s runs unwatched: the fleet API refuses it: %s%s"
                _logger.error(words, self._spec.job_id, error.details(), advice)
                return
            # Each reason once: a refusal may come after calls that nobody answered.
            if error.code() not in warned:
                warned.add(error.code())
                _logger.warning(
                    "the fleet API at %s did not register job %s (%s); trying again, the job runs meanwhile",
                    self._access.address,
                    self._spec.job_id,
                    self._access.words(error),
                )
            self._stopped.wait(back_off_seconds)
            back_off_seconds = min(back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)
