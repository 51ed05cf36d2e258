"""A fleet port without planning: jobs in memory, registered through the real store; tests say what happens to them."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from evenkeel.history.errors import UnknownJobError
from evenkeel.history.records import JobRecord, JobStateRecord, RankExitRecord, RankRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.domain.job_state import new_job
from evenkeel.services.scheduler.domain.standing import Standing
from evenkeel.services.scheduler.serving.news import JobNews, JobView


class FakeFleet:
    """Stands for :class:`evenkeel.services.scheduler.serving.coordinator.Coordinator`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: dict[str, JobView] = {}
        self._watchers: dict[str, list[asyncio.Queue[JobNews | None]]] = {}

    async def register_job(self, job: JobRecord) -> JobView:
        await self._store.save([job])
        return self._jobs.setdefault(job.job_id, JobView(new_job(job), Standing()))

    async def register_ranks(self, job_id: str, ranks: Sequence[RankRecord]) -> int:
        await self._store.save(ranks)
        return 1

    async def report_exits(self, job_id: str, exits: Sequence[RankExitRecord]) -> None:
        await self._store.save(exits)

    async def finish_job(self, job_id: str, failure: str = "") -> None:
        view = self._jobs.pop(job_id, None)
        if view is None:
            raise UnknownJobError(job_id)
        detail = f"failed: {failure}" if failure else ""
        end = JobStateRecord(job_id=job_id, state=JobState.FINISHED, at=view.known.registered_at, detail=detail)
        await self._store.save([end])
        for watcher in self._watchers.pop(job_id, []):
            watcher.put_nowait(None)

    def job(self, job_id: str) -> JobView | None:
        return self._jobs.get(job_id)

    async def watch(self, job_id: str) -> AsyncIterator[JobNews]:
        view = self._jobs.get(job_id)
        if view is None:
            raise UnknownJobError(job_id)
        news: asyncio.Queue[JobNews | None] = asyncio.Queue()
        self._watchers.setdefault(job_id, []).append(news)
        yield view
        while (item := await news.get()) is not None:
            yield item

    def happen(self, job_id: str, news: JobNews) -> None:
        """Tell every watcher of the job."""
        for watcher in self._watchers.get(job_id, []):
            watcher.put_nowait(news)
