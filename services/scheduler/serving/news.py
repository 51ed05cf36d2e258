"""News of one job for its watchers: each has a bounded queue, and one that falls behind is ended, not waited for."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from evenkeel.history.records import PlanStatus, VerdictRecord
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.standing import Standing

_MAX_BEHIND = 256


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as it is now: what is known of it, and what its ranks do."""

    known: JobKnowledge
    standing: Standing


JobNews = JobView | VerdictRecord | PlanStatus
"""What a watcher of a job gets: the job after a change, a verdict that arrived, a plan that changed state."""


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
