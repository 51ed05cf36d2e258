"""One job as the coordinator serves it: one queue of what happens to it, and one writer that takes it out.

What the work for one job raises is a fault of its state or of our code, and comes again with a restart of the service,
for all jobs. So it ends this job's work only: all that is under way is stopped, and after a pause the job begins as it
would after a restart. Ranks train on meanwhile; decided plans are finished, undecided ones are made anew.

What the detector says waits for that. That at which the job failed is offered once more, alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import structlog

from evenkeel.history.errors import FinishedJobError, UnknownRankError
from evenkeel.history.records import StoredJob
from evenkeel.history.vocabulary import JobState
from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.serving.faults import JobAwayError, JobFailedError, is_fault, where_of
from evenkeel.services.scheduler.serving.job_life import JobLife, end_on_record
from evenkeel.services.scheduler.serving.letters import Letter, Letters, joined
from evenkeel.services.scheduler.serving.news import JobNews, JobView, Newsroom
from evenkeel.services.scheduler.serving.parts import Parts

_log = structlog.get_logger(__name__)

Seen = TypeVar("Seen")

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 300.0
QUIET_SECONDS = 2 * LONGEST_SECONDS
"""A job that has not failed for so long begins with the shortest pause again; longer than any pause."""


class ServedJob:
    """One unfinished job. Belongs to the event loop's thread.

    Attributes:
        is_ready: Whether it takes everything in; False while it begins anew.
    """

    def __init__(self, job_id: str, parts: Parts, over: Callable[[str], object]) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            job_id: The job.
            parts: What all jobs share.
            over: Told its id once it has ended.
        """
        self.is_ready = False
        self._job_id, self._parts, self._over = job_id, parts, over
        # One for all that begins anew: it numbers what it tells.
        self._reports: JobEvents | None = None
        self._news = Newsroom()
        self._life: JobLife | None = None
        self._letters, self._begun = Letters(), asyncio.Event()
        self._is_over = False
        self._failed_at_seconds = float("-inf")
        self._pauses = Backoff(first_seconds=FIRST_SECONDS, longest_seconds=LONGEST_SECONDS)
        self._writer: asyncio.Task[None] | None = None

    @property
    def state(self) -> JobState | None:
        """Its state; None while that cannot be told."""
        return self._seen(lambda life: life.job.known.state)

    def view(self) -> JobView | None:
        """The job as it is, or was before it failed; None while that cannot be told."""
        return self._seen(JobLife.view)

    def _seen(self, look: Callable[[JobLife], Seen]) -> Seen | None:
        try:
            return None if self._life is None else look(self._life)
        except Exception:  # the job's next step, or next word of a rank, fails at it too and says what is wrong
            return None

    def watch(self) -> AsyncIterator[JobNews]:
        """The job as it is, then its news, also after it began anew.

        Raises:
            JobAwayError: It cannot be told how it is.
        """
        view = self.view()
        if view is None:
            raise JobAwayError(self._job_id)
        return self._news.subscribe(view)

    def begin(self, stored: StoredJob | None = None) -> None:
        """Begin with what the history says: ``stored`` where it was read already."""
        self._writer = self._parts.spawn(self._work(stored))

    async def begun(self) -> None:
        """Returns once it has begun, or failed at that."""
        await self._begun.wait()

    def tell(self, event: events.Event) -> "asyncio.Future[None]":
        """The detector says something: done when what it leads to is durable; :class:`JobFailedError` = set it aside.

        It waits for a job that begins anew. Cancelled before its turn, it never was.
        """
        return self._letters.add(Letter(event, waits=True)).done

    async def take(self, event: events.Event) -> None:
        """Something has happened to the job; what it leads to is durable and under way on return.

        Raises:
            JobFailedError: It made the job fail, which was told.
            JobAwayError: The job begins anew just now.
            FinishedJobError, UnknownRankError: See :func:`evenkeel.services.scheduler.jobs.machine.on`.
            OperationalError, InterfaceError, DatabaseAwayError: Ranks register, and the database is away.
        """
        if self._is_over or not (self.is_ready or isinstance(event, events.Finish)):
            raise self._away()
        await asyncio.shield(self._letters.add(Letter(event, is_asked=True)).done)

    async def finish(self, failure: str = "") -> None:
        """The job has ended. Of one that begins anew just now, what is open in its history ends with it."""
        if self._life is None or not self._life.job.known.finished:
            await self.take(events.Finish(failure))
        if self._writer is not None:
            await asyncio.wait([self._writer])

    # ---- the writer

    async def _work(self, stored: StoredJob | None) -> None:
        try:
            while not self._is_over:
                await self._live(stored)
                stored = None
                self._begun.set()
                if not self._is_over:
                    await self._pause()
        finally:
            late = None if self._is_over else self._away()
            if self._is_over:
                self._over(self._job_id)
            self.is_ready, self._is_over = False, True
            self._begun.set()
            self._letters.settle(lambda one: one.waits, late)
            self._letters.settle(lambda _: True, self._away())

    async def _live(self, stored: StoredJob | None) -> None:
        """Take the job up, then what happens to it, until it has ended or something of it has failed."""
        try:
            stored = stored or await self._parts.store.load_job(self._job_id)
            if stored is None:
                self._is_over = True
                return
            self._reports = self._reports or self._parts.reports(self._job_id, stored.record.job_token)
            life = JobLife(stored, self._parts, self._letters, self._news, self._reports, self._failed)
        except Exception as error:
            if not is_fault(error):
                raise
            self._tell_failure(error, "begin")
            return
        self._life, self.is_ready = life, True
        await self._step(life, [Letter(events.Began())])
        if self.is_ready and self._begun.is_set():
            _log.info("the job began anew", job_id=self._job_id)
        self._begun.set()
        while self.is_ready and not life.job.known.finished:
            if batch := self._letters.next():
                await self._step(life, batch)
            else:
                await self._letters.changed()
        self.is_ready, self._is_over = False, life.job.known.finished
        await life.end()

    async def _step(self, life: JobLife, batch: list[Letter]) -> None:
        event = joined(batch)
        failure: Exception | None = None
        try:
            await life.step(event)
        except (FinishedJobError, UnknownRankError) as error:
            failure = error
        except asyncio.CancelledError:
            for letter in batch:
                letter.settle(self._away())
            raise
        except Exception as error:
            if not is_fault(error):
                for letter in batch:
                    letter.settle(error)
                if not batch[0].is_asked:
                    raise
                return
            self._failed(error, where_of(event))
            failure = JobFailedError(self._job_id)
        for letter in reversed(batch):
            if failure is not None and letter.waits and not letter.is_second:
                self._letters.offer_again(letter)
            else:
                letter.settle(failure)

    def _failed(self, error: Exception, where: str = "task") -> None:
        """Something of the life fails; what fails of it later comes of that."""
        if self.is_ready:
            self.is_ready = False
            self._tell_failure(error, where)
            self._letters.wake()

    def _tell_failure(self, error: Exception, where: str) -> None:
        now_seconds = self._parts.clock()
        if now_seconds - self._failed_at_seconds > QUIET_SECONDS:
            self._pauses.reset()
        self._failed_at_seconds = now_seconds
        self._parts.metrics.failures.labels(where).inc()
        _log.error(
            "the scheduler failed on a job, which begins anew from its history; it trains on, others are not concerned",
            job_id=self._job_id,
            where=where,
            what_to_do="report it with this traceback; records that fail again are in the dead letters",
            exc_info=error,
        )

    async def _pause(self) -> None:
        """Wait before the job begins anew; one that is to finish does not."""
        self._letters.settle(lambda one: not one.waits and not isinstance(one.event, events.Finish), self._away())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pauses.next_seconds()):
                while not self._letters.ends():
                    await self._letters.changed()
        if ends := self._letters.ends():
            problem: Exception | None = None
            try:
                await end_on_record(self._job_id, self._parts, ends[0].event)
                self._is_over = True
                self._news.close()
            except Exception as error:
                problem = error
            self._letters.settle(lambda one: isinstance(one.event, events.Finish), problem)

    def _away(self) -> Exception:
        finished = self._life is not None and self._life.job.known.finished
        return FinishedJobError(self._job_id) if finished else JobAwayError(self._job_id)
