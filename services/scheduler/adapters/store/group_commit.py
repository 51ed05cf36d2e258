"""Many saves in one transaction: whose turn it is writes for everybody who waits, and those who come later wait for it.

Nobody's mistake is another one's: saves that cannot be written together are written one by one, each all or nothing. A
save that comes alone is a transaction of its own, as fast as without this.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from evenkeel.services.common.postgres.database import is_database_away
from evenkeel.services.scheduler.jobs.steps import JobChange

_MOST_CHANGES = 2000
"""Of several saves in one transaction: whoever comes next waits for it, and it has seconds."""


@dataclass(slots=True, eq=False)
class _Save:
    changes: Sequence[JobChange]
    is_alone: bool = False
    error: Exception | None = None


class GroupCommit:
    """Saves of one process. Belongs to the event loop's thread.

    Args:
        write: Adds changes in a transaction, all or none.
    """

    def __init__(self, write: Callable[[Sequence[JobChange]], Awaitable[None]]) -> None:
        self._write = write
        self._waiting: list[_Save] = []
        self._turn = asyncio.Lock()

    async def save(self, changes: Sequence[JobChange]) -> None:
        """Add changes, all or none; durable on return. Of a caller that is cancelled all or none are added, too."""
        save = _Save(changes)
        self._waiting.append(save)
        try:
            async with self._turn:
                while save in self._waiting:
                    await self._write_for_all(save)
        finally:
            if save in self._waiting:
                self._waiting.remove(save)
        if save.error is not None:
            raise save.error

    async def _write_for_all(self, mine: _Save) -> None:
        """Write a save, and the others that wait; where that fails, and there is a database, each is to be alone."""
        others = [] if mine.is_alone else [one for one in self._waiting if one is not mine and not one.is_alone]
        sizes = accumulate(len(one.changes) for one in (mine, *others))
        together = [
            one for one, size in zip((mine, *others), sizes, strict=True) if one is mine or size <= _MOST_CHANGES
        ]
        problem = None
        try:
            await self._write([change for save in together for change in save.changes])
        except Exception as error:
            problem = error
        is_mistake_of_one = problem is not None and len(together) > 1 and not is_database_away(problem)
        for save in together:
            save.is_alone, save.error = is_mistake_of_one, problem
        if not is_mistake_of_one:
            self._waiting = [save for save in self._waiting if save not in together]
