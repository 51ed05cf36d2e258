"""Which processes the history knows: of an end only that of one of them is believed."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.history.reads import registered_processes
from evenkeel.services.common.backoff import Reachability
from evenkeel.services.common.kafka import Rejection
from evenkeel.services.telemetry.adapters.batch_reader import ArrivedJob
from evenkeel.services.telemetry.adapters.job_keys import UNREADABLE
from evenkeel.services.telemetry.domain.observed import ENDS

_LONGEST_WAIT_SECONDS = 2.0


class Process(NamedTuple):
    """A process of a rank of a job."""

    job_id: str
    rank: int
    incarnation: int


ReadProcesses = Callable[[Sequence[Process]], Awaitable[Collection[tuple[str, int, int]]]]
"""Those of some processes that are registered."""


def processes_in(engine: AsyncEngine) -> ReadProcesses:
    """Reads from a database."""

    async def read(asked: Sequence[Process]) -> Collection[tuple[str, int, int]]:
        async with engine.connect() as connection:
            return await registered_processes(connection, asked)

    return read


class Registered:
    """Asks for processes whose ends were told, on the event loop's thread."""

    def __init__(self, read_processes: ReadProcesses, has_key: Callable[[str], bool]) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            read_processes: Where the answers come from.
            has_key: Whether a job is registered, and so all of its processes are.
        """
        self._read_processes = read_processes
        self._has_key = has_key
        self._reachability = Reachability("postgres (ranks)")

    async def refused(self, jobs: Sequence[ArrivedJob]) -> list[Rejection]:
        """Records of registered jobs that tell of the end of a process that never registered.

        None while the database is away: an end that its launcher has signed must not wait for it.
        """
        told = [
            (Process(job.job_id, event.rank, event.incarnation), job.records[teller])
            for job in jobs
            for event, teller in zip(job.arrived.events, job.tellers, strict=True)
            if event.kind in ENDS and self._has_key(job.job_id)
        ]
        if not told:
            return []
        try:
            async with asyncio.timeout(_LONGEST_WAIT_SECONDS):
                known = set(await self._read_processes([process for process, _ in told]))
        except UNREADABLE as error:
            self._reachability.down(error)
            return []
        self._reachability.up()
        strangers = {record.offset: (record, process) for process, record in told if process not in known}
        return [
            Rejection(
                record=record,
                error="unregistered_process",
                reason=f"the end of rank {process.rank}, incarnation {process.incarnation}, which never registered",
            )
            for record, process in strangers.values()
        ]
