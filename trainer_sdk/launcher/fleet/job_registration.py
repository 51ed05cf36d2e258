"""Makes the job known to the fleet API from a background thread; ranks never wait for it."""

import logging
import os
import threading

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.layouts.model import ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import CALL_TIMEOUT_SECONDS, FleetAccess
from evenkeel.trainer_sdk.control.fleet.last_words import one_line
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec

_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 5.0
_TAKEN = grpc.StatusCode.ALREADY_EXISTS

_logger = logging.getLogger("evenkeel.launcher")


class JobRegistration:
    """Registers a job once, with retries for ever; finishes it at the end, once, as well as it can.

    Args:
        access: The job's way to the fleet API.
        spec: The job.
        model: The model's costs, for the planner.
    """

    def __init__(self, access: FleetAccess, spec: JobSpec, model: ModelSpec) -> None:
        self._access = access
        self._fleet_token = spec.fleet_token
        self._request = pb.RegisterJobRequest(
            job_id=spec.job_id,
            tenant=spec.tenant,
            name=spec.name or spec.job_id,
            job_token=spec.job_token,
            model=model_to_proto(model),
            layout=layout_to_proto(spec.layout),
        )
        self._stopped = threading.Event()
        self._registered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenkeel-job-registration", daemon=True)

    def start(self) -> None:
        """Begin to register; returns at once."""
        self._thread.start()

    def wait_until_registered(self, timeout_seconds: float) -> bool:
        """Whether the fleet API has acknowledged the job within the timeout."""
        return self._registered.wait(timeout_seconds)

    def stop(self) -> None:
        """Register no more; blocks for one call's timeout at most."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(CALL_TIMEOUT_SECONDS + 0.5)

    def finish(self, failure: str = "") -> None:
        """Tell the fleet API that the job has ended, after :meth:`stop`; blocks for one call's timeout at most.

        Args:
            failure: Why it failed; empty when its work is done or somebody ended it.
        """
        error = self._access.finish_job(one_line(failure)) if self._registered.is_set() else None
        if error is not None:
            job_id, why = self._access.job_id, error.code().name
            _logger.warning("the fleet API was not told that job %s ended: %s", job_id, why)

    def _run(self) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        warned: set[grpc.StatusCode] = set()
        while not self._stopped.is_set():
            error = self._access.register_job(self._request, self._fleet_token)
            if error is None:
                self._registered.set()
                return
            if error.code() in (_TAKEN, grpc.StatusCode.INVALID_ARGUMENT):
                advice = "; give this run another EVENKEEL_JOB_ID" if error.code() is _TAKEN else ""
                _logger.error(
                    "job %s runs unwatched: the fleet API refuses it: %s%s",
                    self._access.job_id,
                    error.details(),
                    advice,
                )
                return
            # Each reason once: a refusal may come after calls that nobody answered.
            if error.code() not in warned:
                warned.add(error.code())
                _logger.warning(
                    "the fleet API at %s did not register job %s (%s); trying again, the job runs meanwhile",
                    self._access.address,
                    self._access.job_id,
                    self._access.words(error),
                )
            self._stopped.wait(back_off_seconds)
            back_off_seconds = min(back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)
