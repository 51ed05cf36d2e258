"""Many saves in one transaction: those that come while one is being written are written together after it.

Each save is all or nothing, in a savepoint of its own; nobody's mistake is another one's. A save that comes alone is a
transaction of its own, as fast as without this.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.services.common.completion import TASK_NAME

C = TypeVar("C")

_MOST_CHANGES = 2000
"""In one transaction: whoever comes next waits for it."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Save(Generic[C]):
    changes: Sequence[C]
    outcome: "asyncio.Future[tuple[bool, ...]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class GroupCommit(Generic[C]):
    """Saves of one process. Belongs to the event loop's thread.

    Args:
        transaction: Runs work in a transaction; what it raises is what every save in it gets.
        apply: Adds changes; tells for each whether it was new.
        together: Whether changes of different saves may be added in one call, as if they were one save's; a call that
            fails is made again save by save.
    """

    def __init__(
        self,
        transaction: Callable[[Callable[[AsyncConnection], Awaitable[None]]], Awaitable[None]],
        apply: Callable[[AsyncConnection, Sequence[C]], Awaitable[tuple[bool, ...]]],
        *,
        together: Callable[[Sequence[C]], bool],
    ) -> None:
        self._transaction = transaction
        self._apply = apply
        self._together = together
        self._waiting: list[_Save[C]] = []
        self._writing: asyncio.Task[None] | None = None

    async def save(self, changes: Sequence[C]) -> tuple[bool, ...]:
        """Add changes, all or none; durable on return. A caller that is cancelled does not take them back.

        Returns:
            For each change whether it was new.
        """
        save = _Save(changes=changes)
        self._waiting.append(save)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name=TASK_NAME)
        return await asyncio.shield(save.outcome)

    async def _write(self) -> None:
        while self._waiting:
            saves = self._next()
            try:
                outcomes = await self._written(saves)
            except asyncio.CancelledError:
                for save in (*saves, *self._waiting):
                    save.outcome.cancel()
                self._waiting.clear()
                raise
            except Exception as error:
                outcomes = [error] * len(saves)
            for save, outcome in zip(saves, outcomes, strict=True):
                if save.outcome.done():
                    continue
                if isinstance(outcome, Exception):
                    save.outcome.set_exception(outcome)
                    save.outcome.exception()  # nobody may be there to hear it
                else:
                    save.outcome.set_result(outcome)

    def _next(self) -> list[_Save[C]]:
        num_changes, saves = 0, list[_Save[C]]()
        while self._waiting and (not saves or num_changes + len(self._waiting[0].changes) <= _MOST_CHANGES):
            saves.append(self._waiting.pop(0))
            num_changes += len(saves[-1].changes)
        return saves

    async def _written(self, saves: Sequence[_Save[C]]) -> list[tuple[bool, ...] | Exception]:
        outcomes: dict[int, tuple[bool, ...] | Exception] = {}

        async def work(connection: AsyncConnection) -> None:
            outcomes.clear()
            if len(saves) == 1:
                outcomes[0] = await self._apply(connection, saves[0].changes)
                return
            alike = [number for number, save in enumerate(saves) if self._together(save.changes)]
            outcomes.update(await self._at_once(connection, {number: saves[number] for number in alike}))
            for number, save in enumerate(saves):
                if number not in outcomes:
                    outcomes[number] = await self._alone(connection, save.changes)

        await self._transaction(work)
        return [outcomes[number] for number in range(len(saves))]

    async def _at_once(
        self, connection: AsyncConnection, saves: dict[int, _Save[C]]
    ) -> dict[int, tuple[bool, ...] | Exception]:
        if len(saves) < 2:
            return {}
        found = await self._alone(connection, [change for save in saves.values() for change in save.changes])
        if isinstance(found, Exception):
            return {}
        outcomes: dict[int, tuple[bool, ...] | Exception] = {}
        for number, save in saves.items():
            outcomes[number], found = found[: len(save.changes)], found[len(save.changes) :]
        return outcomes

    async def _alone(self, connection: AsyncConnection, changes: Sequence[C]) -> tuple[bool, ...] | Exception:
        """Outcome of changes, or what is wrong with them; an error that ends the transaction is raised."""
        savepoint = await connection.begin_nested()
        try:
            outcome = await self._apply(connection, changes)
        except Exception as error:
            if connection.invalidated:
                raise
            await savepoint.rollback()  # raises where the transaction is over
            return error
        await savepoint.commit()
        return outcome
