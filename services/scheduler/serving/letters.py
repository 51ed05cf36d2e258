"""What happens to one job, in order, each with whoever waits for what it leads to."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile
from evenkeel.services.scheduler.jobs import events

_NEWEST_COUNTS = ((JobProfile, JobEnded), (Suspicion,))


@dataclass(slots=True, eq=False)
class Letter:
    """One event on its way to its job.

    Attributes:
        event: The event.
        waits: For a job that begins anew; if that failed at it, it is offered once more, alone.
        is_asked: Somebody else waits, who is told what it made the job raise.
        is_second: The job has failed at it.
        done: Once what it leads to is durable.
    """

    event: events.Event
    waits: bool = False
    is_asked: bool = False
    is_second: bool = False
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, error: Exception | None = None) -> None:
        """It has been taken, or ``error`` says why not."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
            self.done.exception()  # nobody may be there to hear it

    @property
    def is_verdict(self) -> bool:
        """Whether it can be taken together with others of its kind."""
        return isinstance(self.event, events.VerdictsTaken) and self.waits and not self.is_second


class Letters:
    """Those of one job that wait for its writer. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: deque[Letter] = deque()
        self._has_changed = asyncio.Event()

    def add(self, letter: Letter) -> Letter:
        """It is the last; of profiles and suspicions those that were not tried yet are needless with it."""
        for kinds in _NEWEST_COUNTS:
            if isinstance(letter.event, kinds):
                self.settle(lambda one: isinstance(one.event, kinds) and not one.is_second)  # noqa: B023 - called here
        self._waiting.append(letter)
        self.wake()
        return letter

    def offer_again(self, letter: Letter) -> None:
        """The job failed at it: it is the first, and alone."""
        letter.is_second = True
        self._waiting.appendleft(letter)

    def wake(self) -> None:
        """Have whoever waits for letters look."""
        self._has_changed.set()

    async def changed(self) -> None:
        """Returns after the next letter, or :meth:`wake`."""
        self._has_changed.clear()
        await self._has_changed.wait()

    def next(self) -> list[Letter]:
        """The first, with all verdicts that follow it if it is one; whoever gave it up is not served."""
        batch = list[Letter]()
        while self._waiting and (not batch or (batch[-1].is_verdict and self._waiting[0].is_verdict)):
            if not (letter := self._waiting.popleft()).done.cancelled():
                batch.append(letter)
        return batch

    def ends(self) -> list[Letter]:
        """Those that ask for the job's end."""
        return [letter for letter in self._waiting if isinstance(letter.event, events.Finish)]

    def settle(self, which: Callable[[Letter], bool], error: Exception | None = None) -> None:
        """These wait no more."""
        over = [letter for letter in self._waiting if which(letter)]
        for letter in over:
            self._waiting.remove(letter)
            letter.settle(error)


def joined(batch: list[Letter]) -> events.Event:
    """The event of some letters that are taken together."""
    told = [letter.event for letter in batch]
    if len(told) == 1:
        return told[0]
    return events.VerdictsTaken(
        tuple(verdict for one in told if isinstance(one, events.VerdictsTaken) for verdict in one.verdicts)
    )
