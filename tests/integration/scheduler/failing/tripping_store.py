"""The real store, which fails for one job where a test wants it to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.history.records import (
    StoredJob,
)
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.jobs.steps import JobChange
from tests.integration.scheduler.conftest import (
    PATIENT_SECONDS,
)


class TrippingStore(Store):
    """The real store, over which the work for one job trips: at writes, or at what it reads at a start.

    Attributes:
        trips_before: Raises before it writes changes that are such.
        trips_after: Raises when it has written them.
        forgets_layouts_of: The job whose history it reads without layouts.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine, timeout_seconds=PATIENT_SECONDS)
        self.trips_before: Callable[[JobChange], bool] = lambda _: False
        self.trips_after: Callable[[JobChange], bool] = lambda _: False
        self.forgets_layouts_of = ""

    async def save(self, changes: Sequence[JobChange]) -> None:
        if any(map(self.trips_before, changes)):
            raise ArithmeticError("before it was written")
        await super().save(changes)
        if any(map(self.trips_after, changes)):
            raise ArithmeticError("after it was written")

    async def load_jobs(self, job_ids: Sequence[str]) -> Mapping[str, StoredJob]:
        records = await super().load_jobs(job_ids)
        forgotten = self.forgets_layouts_of
        return {each: replace(one, layouts={}) if each == forgotten else one for each, one in records.items()}
