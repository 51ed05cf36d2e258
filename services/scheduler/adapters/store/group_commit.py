"""Many saves in one transaction: those that come while one is being written are written together after it.

Nobody's mistake is another one's: saves that cannot be written together are written one by one, each all or nothing. A
save that comes alone is a transaction of its own, as fast as without this.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from evenkeel.services.common.completion import TASK_NAME
from evenkeel.services.common.postgres.database import is_database_away
from evenkeel.services.scheduler.jobs.steps import JobChange

_MOST_CHANGES = 2000
"""In one transaction: whoever comes next waits for it."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Save:
    changes: Sequence[JobChange]
    outcome: "asyncio.Future[tuple[bool, ...]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class GroupCommit:
    """Saves of one process. Belongs to the event loop's thread.

    Args:
        write: Adds changes in a transaction, all or none; tells for each whether it was new.
    """

    def __init__(self, write: Callable[[Sequence[JobChange]], Awaitable[tuple[bool, ...]]]) -> None:
        self._write = write
        self._waiting: list[_Save] = []
        self._writing: asyncio.Task[None] | None = None

    async def save(self, changes: Sequence[JobChange]) -> tuple[bool, ...]:
        """Add changes, all or none; durable on return. A caller that is cancelled does not take them back.

        Returns:
            For each change whether it was new.
        """
        save = _Save(changes=changes)
        self._waiting.append(save)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all(), name=TASK_NAME)
        return await asyncio.shield(save.outcome)

    async def _write_all(self) -> None:
        while self._waiting:
            saves = self._next()
            try:
                await self._settle(saves)
            except asyncio.CancelledError:
                for save in (*saves, *self._waiting):
                    save.outcome.cancel()
                self._waiting.clear()
                raise

    def _next(self) -> list[_Save]:
        num_changes, saves = 0, list[_Save]()
        while self._waiting and (not saves or num_changes + len(self._waiting[0].changes) <= _MOST_CHANGES):
            saves.append(self._waiting.pop(0))
            num_changes += len(saves[-1].changes)
        return saves

    async def _settle(self, saves: Sequence[_Save]) -> None:
        """Write saves together; where that fails, and not because there is no database, each alone."""
        try:
            found = await self._write([change for save in saves for change in save.changes])
        except Exception as error:
            if len(saves) > 1 and not is_database_away(error):
                for save in saves:
                    await self._settle([save])
                return
            for save in saves:
                if not save.outcome.done():
                    save.outcome.set_exception(error)
                    save.outcome.exception()  # nobody may be there to hear it
            return
        for save in saves:
            outcome, found = found[: len(save.changes)], found[len(save.changes) :]
            if not save.outcome.done():
                save.outcome.set_result(outcome)
