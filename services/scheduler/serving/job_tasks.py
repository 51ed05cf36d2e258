"""The tasks of one job: what one of them raises ends this job's work, never the service."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from evenkeel.services.scheduler.serving.faults import is_fault
from evenkeel.services.scheduler.serving.processes import Spawn


class JobTasks:
    """Starts the tasks of one job, and ends them all. Belongs to the event loop's thread."""

    def __init__(self, spawn: Spawn, failed: Callable[[Exception], None]) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            spawn: Starts tasks that the service owns.
            failed: Told what a task raised; never waits.
        """
        self._spawn = spawn
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Start a task; one that fails ends as cancelled, for whoever waits for it."""
        task = self._spawn(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that is cancelled before its first step never began its work.
        task.add_done_callback(lambda _: work.close())
        return task

    async def end(self) -> None:
        """Cancel all tasks; returns when they have ended. What they and later ones raise is told to nobody."""
        self._is_over = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except Exception as error:
            if not is_fault(error):
                raise
            if not self._is_over:
                self._failed(error)
            raise asyncio.CancelledError from error
