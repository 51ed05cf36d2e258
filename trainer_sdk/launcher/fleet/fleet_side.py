"""All that a launcher tells the fleet API of one job, and hears of it: nothing for a job without one."""

from evenkeel.layouts.model import ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.fleet.exit_reports import ExitReports
from evenkeel.trainer_sdk.launcher.fleet.job_registration import JobRegistration
from evenkeel.trainer_sdk.launcher.fleet.rank_registrations import RankRegistrations
from evenkeel.trainer_sdk.launcher.fleet.standing_watch import StandingWatch


class FleetSide:
    """Any thread; only :meth:`stop` and :meth:`wait_until_registered` block.

    Args:
        spec: The job.
        model: The model's costs, for the planner; needed when the job registers at a fleet API.

    Raises:
        ValueError: The job registers and has no model.
    """

    def __init__(self, spec: JobSpec, model: ModelSpec | None) -> None:
        if spec.fleet_address and model is None:
            raise ValueError("a job that registers at a fleet API needs a model spec: the planner works with its costs")
        self._is_there = bool(spec.fleet_address)
        self._exits = ExitReports(spec.access)
        self._ranks = RankRegistrations(spec.access, spec.run_dir)
        self._standing = StandingWatch(spec.access)
        self._registration = None if model is None else JobRegistration(spec.access, spec, model)

    @property
    def standing(self) -> str:
        """What the ranks do, as the scheduler sees it; empty while no scheduler says anything."""
        return self._standing.summary

    def start(self) -> None:
        """Before any rank starts; returns at once."""
        if self._is_there and self._registration is not None:
            self._registration.start()
            self._exits.start()
            self._ranks.start()
            self._standing.start()

    def wait_until_registered(self, timeout_seconds: float) -> bool:
        """Whether the fleet API has acknowledged the job within the timeout."""
        return self._registration is not None and self._registration.wait_until_registered(timeout_seconds)

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
        if not self._is_there or self._registration is None:
            return
        self._ranks.stop()
        self._exits.stop()
        self._registration.stop()
        if is_over:
            self._registration.finish(failure)
        self._standing.stop()
