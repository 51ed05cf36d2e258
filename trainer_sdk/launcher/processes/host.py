"""One host's processes of a job: it forks them, sees them end, brings them back, and keeps its store running.

For a process of one thread, which has imported everything heavy and started no CUDA.
"""

import gc
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from evenkeel.trainer_sdk.control.fleet.last_words import leave
from evenkeel.trainer_sdk.launcher.processes.children import EXIT_FAILED, Child, Children
from evenkeel.trainer_sdk.launcher.processes.store_keeper import StoreKeeper
from evenkeel.trainer_sdk.launcher.processes.unit import Unit

STORE, HELPER = -1, -2  # stand in for ranks
_LONGEST_ABSENCE_SECONDS = 1.0
"""Of the store and the helper, which are started again whatever they ended by."""


class Host(ABC):
    """Runs this host's units. Main thread, and no other.

    Args:
        job_id: Job.
        stores: ``host:port`` of each of the job's stores; empty = the only one, of this host.
        units: What lives and dies as one here; their first lives are due.
        folder: Where a process that fails leaves its last words.
        delay_seconds: From a unit's failure to its next life; None = there is none unless somebody asks for it.
        finish_grace_seconds: How long the others may live on after the first one that has finished.
        max_restarts: Of each unit.
        helper: What a process that may have threads runs, as long as the host does; None = there is no such process.

    Attributes:
        stores: All of the job's, comma-separated.
        finish_grace_seconds: As given.
    """

    def __init__(
        self,
        *,
        job_id: str,
        stores: Sequence[str],
        units: Sequence[Unit],
        folder: Path,
        delay_seconds: float | None,
        finish_grace_seconds: float,
        max_restarts: float = float("inf"),
        helper: Callable[[], int] | None = None,
    ) -> None:
        self._children = Children(self._let_go, self._failed)
        self._store = StoreKeeper.of_this_host(job_id, stores)
        self.stores = ",".join(stores) or (self._store.address if self._store is not None else "")
        self._units = units
        self._services: dict[int, Callable[[], int]] = {}
        if self._store is not None:
            self._services[STORE] = self._store.host
        if helper is not None:
            self._services[HELPER] = helper
        services = [Unit((each,), longest_delay_seconds=_LONGEST_ABSENCE_SECONDS) for each in self._services]
        self._all = (*services, *units)
        self._unit_of = {rank: unit for unit in self._all for rank in unit.ranks}
        self._folder = folder
        self._delay_seconds = delay_seconds
        self.finish_grace_seconds = finish_grace_seconds
        self._max_restarts = max_restarts
        self._ends_at = float("inf")
        self._ended = 0  # by which signal; -1: in order

    def run(self, source: "Connection[Any, Any]", *signals: signal.Signals) -> int:
        """Serve until no unit lives, nor will again, or one of these signals comes; then end all children, see to that.

        Args:
            source: What else is listened to, see :meth:`_hear`.
            *signals: Which.

        Returns:
            The signal that came; 0 when none did.

        Raises:
            OSError: There is no process to be had for a first life.
        """
        self._children.listen()
        for each in signals:
            signal.signal(each, self._on_signal)
        gc.freeze()
        try:
            while not self._ended and not all(each.is_over for each in self._units):
                self._start_what_is_due()
                files = [self._children.wake.fileno(), source.fileno()]
                readable, _, _ = select.select(files, [], [], self._seconds_to_wait())
                if source.fileno() in readable:
                    self._hear()
                for found in self._children.reap():
                    self._on_end(*found)
        finally:
            self._ended = self._ended or -1
            self._tell("ending")
            self._children.end_all(self._on_end)
        return max(self._ended, 0)

    # ---- what a kind of host does

    @abstractmethod
    def _bodies(self, unit: Unit) -> Callable[[int], Callable[[], int]]:
        """For a unit's life that begins, what each of its ranks runs."""

    @abstractmethod
    def _hear(self) -> None:
        """What else is listened to has something to say."""

    @abstractmethod
    def _tell(self, event: str, **facts: Any) -> None:
        """Something has happened.

        Args:
            event: ``forked``, ``exited``, ``unforked`` (there is no process to be had now), or ``ending``, after which
                only the ends of units' processes are told.
            **facts: Plain values.
        """

    # ---- inside

    def _on_signal(self, number: int, _frame: object) -> None:
        self._ended = number

    def _on_end(self, child: Child, pid: int, code: int) -> None:
        unit = self._unit_of[child.rank]
        if unit.ended(child.rank, code):
            self._kill(unit)  # it lives or dies as one
        if not unit.alive:
            self._decide(unit)
        if not (self._ended and child.rank in self._services):
            self._tell("exited", rank=child.rank, incarnation=child.incarnation, pid=pid, code=code)

    def _decide(self, unit: Unit) -> None:
        """Nobody of it lives any more."""
        now = time.monotonic()
        if unit.ranks[0] in self._services:
            unit.plan_restart(now, 0.0)
        elif unit.has_finished:
            unit.is_over = True
            self._ends_at = min(self._ends_at, now + self.finish_grace_seconds)
            if self._store is not None:
                self._store.job_finished()
            for other in self._units:
                other.is_over |= not other.alive  # the work is done: there is nobody to join
        elif unit.is_asked_for:
            unit.due_at = now
        elif self._delay_seconds is None or self._ends_at < float("inf") or unit.incarnation >= self._max_restarts:
            unit.is_over = True
        else:
            unit.plan_restart(now, self._delay_seconds)

    def _kill(self, unit: Unit) -> None:
        for rank in unit.alive:
            self._children.signal(Child(rank, unit.incarnation), signal.SIGKILL)

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        for unit in self._units:
            if now > min(unit.ends_at, self._ends_at):
                self._kill(unit)
        for unit in self._all:
            if unit.is_due and unit.due_at is not None and unit.due_at <= now:
                self._start(unit)

    def _start(self, unit: Unit) -> None:
        is_service = unit.ranks[0] in self._services
        is_first = not unit.statuses and not is_service
        unit.begin(time.monotonic())
        body_of = self._services.__getitem__ if is_service else self._bodies(unit)
        for rank in unit.ranks:
            child = Child(rank, unit.incarnation)
            try:
                pid = self._children.fork(child, body_of(rank))
            except OSError as error:
                if is_first:
                    raise
                # No memory or no process to be had now: as one that ended at once, while those who train go on.
                unit.statuses.append(EXIT_FAILED)
                self._kill(unit)
                if not unit.alive:
                    self._decide(unit)
                    unit.incarnation -= 1  # which nobody has been
                self._tell("unforked", rank=rank, why=str(error))
                return
            unit.alive.add(rank)
            self._tell("forked", rank=rank, incarnation=unit.incarnation, pid=pid)

    def _seconds_to_wait(self) -> float | None:
        now = time.monotonic()
        due = [unit.due_at for unit in self._all if unit.is_due and unit.due_at is not None]
        ends = [min(unit.ends_at, self._ends_at) for unit in self._units if unit.alive]
        due += [max(each, now + 0.1) for each in ends if each < float("inf")]
        return max(0.0, min(due) - now) if due else None

    # ---- in a child

    def _let_go(self, child: Child) -> None:
        if self._store is not None:
            self._store.close_in_child(is_store=child.rank == STORE)

    def _failed(self, child: Child, error: BaseException) -> None:
        leave(error, self._folder, child.rank, child.incarnation)
