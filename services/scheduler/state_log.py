"""Which state a job was last said to be in: each is recorded once."""

from collections.abc import Callable

from evenkeel.history.vocabulary import JobState
from evenkeel.services.scheduler.adapters.fleet_port import JobView
from evenkeel.services.scheduler.adapters.store import Change, JobStateRecord
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.news import Newsroom
from evenkeel.services.scheduler.parts import Parts


class StateLog:
    """One job's states. Event loop's thread, under the lock of the job's actor."""

    def __init__(self, said: JobState, parts: Parts, news: Newsroom, view: Callable[[JobKnowledge], JobView]) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            said: The state that the history knows; after a restart it may be set once more.
            parts: What all jobs share.
            news: Where the job's watchers are told.
            view: What they are shown of it.
        """
        self.said = said
        self._parts = parts
        self._news = news
        self._view = view

    async def announce(self, job: JobKnowledge) -> None:
        """Record the job's state if it is another one than was last said, and publish the job as it is."""
        changes = self.changes(job)
        if changes:
            await self._parts.store.save_patiently(changes)
        self._news.publish(self._view(job))

    def changes(self, job: JobKnowledge) -> list[Change]:
        """The state of a job, as it is or is about to become, as a record if it changed since the last one."""
        if job.state is self.said:
            return []
        self.said = job.state
        detail = f"ranks {list(job.lost)} are gone" if job.state is JobState.DEGRADED else ""
        if job.stuck and job.state is JobState.STUCK:
            detail = job.stuck.detail
        return [self.record(job.job_id, job.state, detail)]

    def record(self, job_id: str, state: JobState, detail: str) -> JobStateRecord:
        """A state entered now."""
        return JobStateRecord(job_id=job_id, state=state, at=self._parts.now(), detail=detail)
