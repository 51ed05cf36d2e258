"""News of one job for its watchers: each has a bounded queue, and one that falls behind is ended, not waited for."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime

from evenkeel.history.records import PlanStatus, VerdictRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import RankInfo
from evenkeel.services.scheduler.domain.standing import Standing, standing

_MAX_BEHIND = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as it is now; fields as in ``evenkeel.scheduler.v1.Job``, ranks ascending.

    A rank counts as alive once it has registered, until it is gone or done.
    """

    job_id: str
    tenant: str
    name: str
    model: ModelSpec
    layout: Layout
    epoch: int
    state: JobState
    registered_at: datetime
    ranks: tuple[RankInfo, ...]
    proportional_bound: float
    can_reshape: bool = True
    problem: str = ""
    standing: Standing = field(default_factory=Standing)


JobNews = JobView | VerdictRecord | PlanStatus
"""What a watcher of a job gets: the job after a change, a verdict that arrived, a plan that changed state."""

_AS_KNOWN = {each.name for each in fields(JobView)} - {"ranks", "problem", "standing"}


class Newsroom:
    """Watchers of one job. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[JobNews | None]] = set()
        self._closed = False

    def publish(self, news: JobNews) -> None:
        """Tell every watcher; never blocks."""
        for queue in list(self._queues):
            if queue.qsize() >= _MAX_BEHIND:
                self._queues.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(news)

    def close(self) -> None:
        """End every watcher once it has read what was published."""
        self._closed = True
        for queue in self._queues:
            queue.put_nowait(None)
        self._queues.clear()

    async def subscribe(self, first: JobNews) -> AsyncIterator[JobNews]:
        """``first``, then everything published from the first step of the iteration on."""
        queue: asyncio.Queue[JobNews | None] = asyncio.Queue()
        if not self._closed:
            self._queues.add(queue)
        try:
            yield first
            while not self._closed or not queue.empty():
                news = await queue.get()
                if news is None:
                    return
                yield news
        finally:
            self._queues.discard(queue)


def job_view(job: JobKnowledge, states: Mapping[int, RankState]) -> JobView:
    """The job as it is.

    Args:
        job: The job.
        states: What each rank said last of itself.
    """
    stands = standing(job, states)
    return JobView(
        ranks=tuple(
            replace(info, alive=info.alive and bool(info.address) and not info.ended)
            for _, info in sorted(job.ranks.items())
        ),
        problem=stands.stuck.detail if stands.stuck and job.state is JobState.STUCK else "",
        standing=stands,
        **{name: getattr(job, name) for name in _AS_KNOWN},
    )
