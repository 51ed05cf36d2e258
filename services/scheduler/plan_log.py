"""A plan's states, told to everybody who must know: first the history, then metrics, log and watchers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from evenkeel.history.records import PlanEventRecord, PlanRecord, PlanStatus
from evenkeel.history.vocabulary import PlanState
from evenkeel.services.scheduler.adapters.store import Change, Store
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.news import Newsroom

_log = structlog.get_logger(__name__)


class PlanLog:
    """Where plans of one job are recorded. Belongs to the event loop's thread.

    Attributes:
        overtaken: Ids of decided plans that no rank will be seen to run any more, and whose end is not recorded yet.
    """

    def __init__(self, store: Store, metrics: SchedulerMetrics, news: Newsroom, clock: Callable[[], float]) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            store: The history.
            metrics: Counts.
            news: Watchers.
            clock: Unix seconds.
        """
        self._store = store
        self._metrics = metrics
        self._news = news
        self._clock = clock
        self.overtaken: list[str] = []
        self._writes: set[asyncio.Future[tuple[bool, ...]]] = set()

    async def proposed(self, record: PlanRecord, more: Sequence[Change] = ()) -> None:
        """A plan is proposed; durable on return, a second time changes nothing."""
        await self._store.save_patiently([record, *more])
        self._tell(record, PlanEventRecord(plan_id=record.plan_id, state=PlanState.PROPOSED, at=record.proposed_at))

    async def advised(self, record: PlanRecord, advice: str, note: Change) -> None:
        """A plan that nobody is told to apply, and the note on its incident; a second time changes nothing."""
        event = PlanEventRecord(plan_id=record.plan_id, state=PlanState.ADVISED, at=record.proposed_at, detail=advice)
        is_new, *_ = await self._store.save_patiently([record, event, note])
        if is_new:
            self._tell(record, event)

    async def entered(
        self,
        record: PlanRecord,
        state: PlanState,
        *,
        first_iteration: int | None = None,
        measured_seconds: float | None = None,
        decision: Mapping[str, Any] | None = None,
        detail: str = "",
        more: Sequence[Change] = (),
    ) -> None:
        """A proposed plan entered a state; durable on return, together with ``more``.

        Cancelling the caller does not cancel the write: a flight that is replaced must not leave the question open.
        """
        event = PlanEventRecord(
            plan_id=record.plan_id,
            state=state,
            at=datetime.fromtimestamp(self._clock(), UTC),
            first_iteration=first_iteration,
            measured_seconds=measured_seconds,
            decision=decision,
            detail=detail,
        )
        write = asyncio.ensure_future(self._store.save_patiently([event, *more]))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        await asyncio.shield(write)
        self._tell(record, event)

    async def settled(self) -> None:
        """Returns when no write is under way that a cancelled caller has left behind."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    def overtaken_ends(self, detail: str) -> list[PlanEventRecord]:
        """The ends of all overtaken plans, to be recorded with what has overtaken them."""
        at = datetime.fromtimestamp(self._clock(), UTC)
        return [
            PlanEventRecord(plan_id=plan_id, state=PlanState.ABORTED, at=at, detail=detail)
            for plan_id in self.overtaken
        ]

    def _tell(self, record: PlanRecord, event: PlanEventRecord) -> None:
        seconds = max(0.0, event.at.timestamp() - record.proposed_at.timestamp())
        self._metrics.phase_seconds.labels(event.state.value).observe(seconds)
        self._metrics.plans.labels(record.mode.value, event.state.value).inc()
        _log.info(
            "plan",
            job_id=record.job_id,
            plan_id=record.plan_id,
            state=event.state.value,
            mode=record.mode.value,
            epoch=record.epoch,
            seconds_since_proposed=round(seconds, 4),
            detail=event.detail,
        )
        self._news.publish(
            PlanStatus(
                plan=record,
                state=event.state,
                at=event.at,
                first_iteration=event.first_iteration,
                measured_seconds=event.measured_seconds,
                decision=event.decision,
                detail=event.detail,
            )
        )
