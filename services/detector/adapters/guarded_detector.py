"""One job's detector that may fail, by a mistake of ours, without an end for those of all other jobs."""

from collections.abc import Callable, Sequence
from functools import cached_property

import structlog

from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.frames.observation import Observation
from evenkeel.services.detector.domain.job.job import Finding, JobDetector

_log = structlog.get_logger(__name__)


class GuardedDetector:
    """Begins a job anew where its detector raised: the same observations would raise again after a restart.

    What is found depends on the observations alone, also then. Not thread-safe, as the detector is not; whatever needs
    the detector for the first time takes some milliseconds, for then it takes its snapshot over.

    Args:
        job_id: The job.
        iterations_per_false_alarm: Its budget.
        on_failure: Called for each failure.
        snapshot: What it knows already; where that cannot be read it begins anew.
    """

    def __init__(
        self,
        job_id: str,
        *,
        iterations_per_false_alarm: float,
        on_failure: Callable[[], None],
        snapshot: bytes | None = None,
    ) -> None:
        self._job_id, self._iterations_per_false_alarm = job_id, iterations_per_false_alarm
        self._on_failure = on_failure
        self._snapshot = snapshot

    @cached_property
    def _detector(self) -> JobDetector:
        detector, snapshot, self._snapshot = self._new_detector(), self._snapshot, None
        if snapshot is not None:
            try:
                load(detector, snapshot)
            except Exception as error:
                _log.warning("snapshot left out; the job is learned afresh", job_id=self._job_id, error=repr(error))
                return self._new_detector()
        return detector

    @property
    def has_begun(self) -> bool:
        """Its snapshot is taken over: nothing takes long any more."""
        return "_detector" in self.__dict__

    def finished(self) -> bool:
        """See :class:`JobDetector`."""
        return self._detector.finished

    def observe(self, observations: Sequence[Observation]) -> tuple[list[Finding], list[tuple[int, Exception]]]:
        """Takes the job's next observations; where the detector raises, a new one goes on from that observation.

        Returns:
            What was found, and which observations even a detector that knows nothing cannot take, by their place.
        """
        found: list[Finding] = []
        refused: list[tuple[int, Exception]] = []
        for place, observation in enumerate(observations):
            try:
                found += self._observe(observation)
            except Exception as error:
                self._failed(error)
                refused.append((place, error))
        return found, refused

    def _observe(self, observation: Observation) -> list[Finding]:
        try:
            return self._detector.observe(observation)
        except Exception as error:
            self._failed(error)
        return self._detector.observe(observation)

    def to_snapshot(self) -> bytes:
        """The state as it is now; begins anew where there are no bytes of it."""
        try:
            return dump(self._detector)
        except Exception as error:
            self._failed(error)
        return dump(self._detector)

    def _failed(self, error: Exception) -> None:
        self._on_failure()
        _log.error(
            "a job's detector failed and begins anew; the job trains on, others are not concerned",
            job_id=self._job_id,
            iteration=self._detector.iteration,
            what_to_do="report it with this traceback; what is ill now is found again within some dozens of iterations",
            exc_info=error,
        )
        self._detector = self._new_detector()

    def _new_detector(self) -> JobDetector:
        return JobDetector(self._job_id, iterations_per_false_alarm=self._iterations_per_false_alarm)
