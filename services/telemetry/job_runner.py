"""One job behind a fence: what its rules trip over, by a mistake of ours, must not end the others."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.joiner import Outcome
from evenkeel.services.telemetry.domain.observed import ENDS, Arrived, ArrivedEvent, Numbered
from evenkeel.services.telemetry.domain.rollups import FinishedWindow, RollupAggregator
from evenkeel.services.telemetry.domain.sequences import BatchSequences

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Told:
    """What a job has to tell.

    Attributes:
        numbered: Observations, in order.
        windows: Rows for the history.
        num_lost: Batches that never came.
        num_dropped: Iterations that its ranks dropped.
        error: What it tripped over; it has begun anew.
    """

    numbered: list[Numbered] = field(default_factory=list)
    windows: list[FinishedWindow] = field(default_factory=list)
    num_lost: int = 0
    num_dropped: int = 0
    error: Exception | None = None


class JobRunner:
    """The stream, the rollups and the counts of one job. Runs in the worker thread; nothing here raises."""

    def __init__(self, stream: JobStream, *, window_iterations: int) -> None:
        """Starts with a stream, and nothing to sum up.

        Args:
            stream: New or resumed.
            window_iterations: Length of a rollup's window.
        """
        self._window_iterations = window_iterations
        self._begin(stream)

    def take(self, arrived: Arrived, now_seconds: float, first_seconds: float) -> Told:
        """Takes in what came together, the first of it at ``first_seconds``."""

        def take() -> Told:
            num_lost, num_dropped = self._sequences.add(arrived.batches)
            numbered = self.stream.take(arrived, now_seconds, first_seconds)
            windows = self.rollups.add(arrived.batches, arrived.offsets, now_seconds)
            for event in arrived.events:
                if event.kind in ENDS:
                    windows += self.rollups.finish_process(event.rank, event.incarnation)
            return Told(numbered, windows, num_lost, num_dropped)

        return self._fenced(take, now_seconds, untold=arrived.events)

    def tick(self, now_seconds: float) -> Told:
        """What the passing of time alone brings."""
        return self._fenced(lambda: Told(numbered=self.stream.tick(now_seconds)), now_seconds)

    def finish_windows(self, now_seconds: float, *, is_over: bool) -> Told:
        """Ends windows to which nothing came lately; all, if the job is over."""
        rollups = self.rollups
        return self._fenced(
            lambda: Told(windows=rollups.finish_all() if is_over else rollups.finish_idle(now_seconds)), now_seconds
        )

    def outcomes(self) -> Mapping[Outcome, int]:
        """What became of iterations since this was asked last."""
        news, self.stream.frames.outcomes = self.stream.frames.outcomes, Counter()
        return news

    def tell_of_laggards(self, now_seconds: float) -> int:
        """Logs who has fallen behind and who is back; returns how many are behind."""
        laggards, job_id = self.stream.frames.laggards, self.stream.job_id
        fallen, back = laggards.news(now_seconds)
        for one in fallen:
            _log.warning(
                "a rank is behind its peers: its samples are in the rollups and in no frame until it has caught up",
                job_id=job_id,
                rank=one.rank,
                incarnation=one.incarnation,
                iteration=one.iteration,
                peers_at_iteration=one.behind_iteration,
                what_to_do="give run.iteration(index=...) the number that its peers are at, or start all again",
            )
        for one in back:
            _log.info("a rank has caught up", job_id=job_id, rank=one.rank, late_samples=one.num_samples)
        return len(laggards.behind(now_seconds))

    def _fenced(self, work: Callable[[], Told], now_seconds: float, untold: Sequence[ArrivedEvent] = ()) -> Told:
        """What some work leads to, or that the job has begun anew.

        What was said stays then: numbers go on, and who has ended. Else it would be read again after a restart.
        """
        try:
            return work()
        except Exception as error:
            _log.error(
                "joining what a job measured failed and begins anew; the job trains on, others are not concerned",
                job_id=self.stream.job_id,
                what_to_do="report it with this traceback; frames are complete again within some iterations",
                exc_info=error,
            )
            self._begin(self.stream.begun_anew(untold, now_seconds))
            return Told(error=error)

    def _begin(self, stream: JobStream) -> None:
        self.stream = stream
        self.rollups = RollupAggregator(stream.job_id, window_iterations=self._window_iterations)
        self._sequences = BatchSequences()
