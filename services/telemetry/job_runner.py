"""One job behind a fence: what its rules trip over, by a mistake of ours, must not end the others."""

from collections.abc import Sequence
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
        self.stream = stream
        self._window_iterations = window_iterations
        self.rollups = RollupAggregator(stream.job_id, window_iterations=window_iterations)
        self._sequences = BatchSequences()
        self._counted: dict[Outcome, int] = {}

    def take(self, arrived: Arrived, now_seconds: float, first_seconds: float) -> Told:
        """Takes in what came together, the first of it at ``first_seconds``."""
        told = Told()
        try:
            told.num_lost, told.num_dropped = self._sequences.add(arrived.batches)
            told.numbered = self.stream.take(arrived, now_seconds, first_seconds)
            told.windows = self.rollups.add(arrived.batches, arrived.offsets, now_seconds)
            for event in arrived.events:
                if event.kind in ENDS:
                    told.windows += self.rollups.finish_process(event.rank, event.incarnation)
        except Exception as error:
            self._begin_anew(error, now_seconds, untold=arrived.events)
            return Told(error=error)
        return told

    def tick(self, now_seconds: float) -> Told:
        """What the passing of time alone brings."""
        try:
            return Told(numbered=self.stream.tick(now_seconds))
        except Exception as error:
            self._begin_anew(error, now_seconds)
            return Told(error=error)

    def finish_windows(self, now_seconds: float, *, is_over: bool) -> Told:
        """Ends windows to which nothing came lately; all, if the job is over."""
        try:
            return Told(windows=self.rollups.finish_all() if is_over else self.rollups.finish_idle(now_seconds))
        except Exception as error:
            self._begin_anew(error, now_seconds)
            return Told(error=error)

    def outcomes(self) -> dict[Outcome, int]:
        """What became of iterations since this was asked last."""
        totals = dict(self.stream.frames.outcomes)
        news = {outcome: total - self._counted.get(outcome, 0) for outcome, total in totals.items()}
        self._counted = totals
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

    def _begin_anew(self, error: Exception, now_seconds: float, untold: Sequence[ArrivedEvent] = ()) -> None:
        """What was said stays: numbers go on, and who has ended. Else it would be read again after a restart."""
        _log.error(
            "joining what a job measured failed and begins anew; the job trains on, others are not concerned",
            job_id=self.stream.job_id,
            what_to_do="report it with this traceback; frames are complete again within some iterations",
            exc_info=error,
        )
        self.stream = self.stream.begun_anew(untold, now_seconds)
        self.rollups = RollupAggregator(self.stream.job_id, window_iterations=self._window_iterations)
        self._sequences = BatchSequences()
        self._counted = {}
