"""How often one job began anew: each failure is logged and counted, and the pauses between renewals grow."""

import time
from collections.abc import Callable

import structlog
from prometheus_client import Counter

from evenkeel.services.common.backoff import Backoff

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 300.0
QUIET_SECONDS = 2 * LONGEST_SECONDS
"""A job that has not failed for so long begins with the shortest pause again; longer than any pause."""

_log = structlog.get_logger(__name__)


class Renewals:
    """Those of one job. Belongs to the event loop's thread."""

    def __init__(
        self,
        job_id: str,
        failures: Counter,
        *,
        clock: Callable[[], float] = time.monotonic,
        backoff: Backoff | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            job_id: The job.
            failures: Counts, by where they were.
            clock: Seconds that only grow.
            backoff: Pauses; None = from ``FIRST_SECONDS`` to ``LONGEST_SECONDS``, shortened a little at random.
        """
        self._job_id = job_id
        self._failures = failures
        self._clock = clock
        self._backoff = backoff or Backoff(first_seconds=FIRST_SECONDS, longest_seconds=LONGEST_SECONDS)
        self._last_seconds: float | None = None

    def failed(self, where: str, doing: str, error: Exception) -> None:
        """A failure of the job's work.

        Args:
            where: One of few words, for the metrics.
            doing: What was being done.
            error: What was raised.
        """
        now = self._clock()
        if self._last_seconds is not None and now - self._last_seconds > QUIET_SECONDS:
            self._backoff.reset()
        self._last_seconds = now
        self._failures.labels(where).inc()
        _log.error(
            "the scheduler failed on a job, which begins anew from its history; it trains on, others are not concerned",
            job_id=self._job_id,
            where=where,
            doing=doing,
            what_to_do="report it with this traceback; records that fail again are in the dead letters",
            exc_info=error,
        )

    def pause_seconds(self) -> float:
        """How long to wait before the job begins anew now; longer each time."""
        return self._backoff.next_seconds()
