"""One host's part of a job: its ranks, their replacements, and one of the job's stores where the list says so.

No agent is special. One that dies takes its host's ranks along, and the other hosts go on; one that is started again
has its ranks join them. Agents say nothing to one another.
"""

import gc
import logging
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from evenkeel.trainer_sdk.control.last_words import LastWords
from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from evenkeel.trainer_sdk.launcher.agent.script_rank import run_script
from evenkeel.trainer_sdk.launcher.left_words import leave, take
from evenkeel.trainer_sdk.launcher.processes.children import Child, Children
from evenkeel.trainer_sdk.launcher.processes.process_reports import exit_words
from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_EVICTED
from evenkeel.trainer_sdk.launcher.processes.restarts import QUICK_FAILURE_SECONDS, backed_off_seconds
from evenkeel.trainer_sdk.launcher.processes.store_keeper import StoreKeeper

_STORE = -1
_FINISH_GRACE_SECONDS = 30.0
_logger = logging.getLogger("evenkeel.launch")


class _Replica:
    """A replica of this host."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.incarnation = -1
        self.alive: set[int] = set()  # ranks of the job
        self.statuses: list[int] = []
        self.started_at = 0.0
        self.due_at: float | None = 0.0
        self.num_quick = 0
        self.is_over = False


class Agent:
    """Runs this host's replicas to their end. Main thread, and no other.

    Args:
        job: The job.

    Raises:
        ValueError: None of the job's stores has an address of this host where there must be one.
    """

    def __init__(self, job: ScriptJob) -> None:
        self._job = job
        self._notes = tempfile.TemporaryDirectory(prefix="evenkeel-launch-")
        self._children = Children(self._let_go, self._failed)
        self._store = self._own_store()
        if self._store is None and not job.stores:
            raise ValueError("no port is free for the job's store")
        self._stores = ",".join(job.stores) or "{}:{}".format(*self._store.address)  # type: ignore[union-attr]
        self._replicas = [_Replica(each) for each in job.replicas]
        self._ends_at: float | None = None
        self._received = 0

    def run(self) -> int:
        """Returns 0 when every replica has finished, 1 when one was given up, 128 + n when signal n ended it."""
        self._children.listen()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        gc.freeze()
        try:
            while not self._received and not all(each.is_over for each in self._replicas):
                self._start_what_is_due()
                select.select([self._children.wake], [], [], self._seconds_to_wait())
                for found in self._children.reap():
                    self._on_end(*found)
        finally:
            self._children.end_all(lambda *_: None)
            self._notes.cleanup()
        if self._received:
            return 128 + self._received
        return int(any(any(each.statuses) for each in self._replicas))

    # ---- what happens

    def _on_signal(self, number: int, _frame: object) -> None:
        self._received = number

    def _on_end(self, child: Child, pid: int, code: int) -> None:
        if child.rank == _STORE:
            if self._store is not None:
                self._store.ended()
            _logger.warning("this host's store, process %d, ended (%s): it is started again", pid, exit_words(code))
            return
        replica = self._replicas[child.rank // self._job.replica_size - self._job.replicas.start]
        replica.alive.discard(child.rank)
        replica.statuses.append(code)
        words = take(Path(self._notes.name), child.rank, child.incarnation)
        if code:
            said = f"{exit_words(code)}: {words.line}" if words else exit_words(code)
            _logger.warning("replica %d: rank %d.%d ended: %s", replica.number, child.rank, child.incarnation, said)
            for rank in replica.alive:  # a replica lives or dies as one
                self._children.signal(Child(rank, child.incarnation), signal.SIGKILL)
        if not replica.alive:
            self._on_replica_end(replica)

    def _on_replica_end(self, replica: _Replica) -> None:
        if not any(replica.statuses):
            replica.is_over = True
            if self._ends_at is None:
                self._ends_at = time.monotonic() + _FINISH_GRACE_SECONDS
            for other in self._replicas:
                other.is_over |= not other.alive  # the work is done: there is nobody to join
            return
        if self._ends_at is not None or replica.incarnation >= self._job.max_restarts:
            replica.is_over = True
            if self._ends_at is None:
                times = 1 + replica.incarnation
                _logger.error("replica %d is given up: it was started %d times", replica.number, times)
            return
        lived = time.monotonic() - replica.started_at
        evicted = EXIT_EVICTED in replica.statuses
        replica.num_quick = replica.num_quick + 1 if lived < QUICK_FAILURE_SECONDS and not evicted else 0
        replica.due_at = time.monotonic() + backed_off_seconds(0.0, replica.num_quick)

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        if self._store is not None and self._store.due_in_seconds == 0.0:
            self._store.start()
        if self._ends_at is not None and now > self._ends_at:
            for replica in self._replicas:
                for rank in replica.alive:
                    self._children.signal(Child(rank, replica.incarnation), signal.SIGKILL)
        for replica in self._replicas:
            if not replica.is_over and replica.due_at is not None and replica.due_at <= now:
                self._start(replica)

    def _start(self, replica: _Replica) -> None:
        replica.incarnation += 1
        replica.started_at, replica.due_at, replica.statuses = time.monotonic(), None, []
        size, incarnation = self._job.replica_size, replica.incarnation
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = int(listener.getsockname()[1])
        for index in range(size):
            child = Child(replica.number * size + index, incarnation)
            settings = self._job.settings(replica.number, index, incarnation, stores=self._stores, port=port)
            failed = partial(self._failed, child)
            self._children.fork(child, partial(run_script, self._job, settings, failed))
            replica.alive.add(child.rank)
        if incarnation:
            _logger.info("replica %d is started again, the %d. time", replica.number, incarnation)

    def _seconds_to_wait(self) -> float | None:
        now = time.monotonic()
        due = [each.due_at for each in self._replicas if each.due_at is not None and not each.is_over]
        if self._ends_at is not None:
            due.append(max(self._ends_at, now + 0.1))
        if self._store is not None and self._store.due_in_seconds is not None:
            due.append(now + self._store.due_in_seconds)
        return max(0.0, min(due) - now) if due else None

    # ---- the store

    def _own_store(self) -> StoreKeeper | None:
        """The store of the first address in the list that is this host's; None = others have them."""

        def fork(body: Callable[[], int]) -> int:
            return self._children.fork(Child(_STORE, 0), body)

        for address in self._job.stores:
            host, _, port = address.rpartition(":")
            try:
                return StoreKeeper(self._job.job_id, fork, (socket.gethostbyname(host), int(port)))
            except OSError:  # another host's
                continue
        return None if self._job.stores else StoreKeeper(self._job.job_id, fork)

    # ---- in a child

    def _let_go(self, child: Child) -> None:
        self._notes._finalizer.detach()  # type: ignore[attr-defined]  # the folder is the agent's
        if self._store is not None:
            self._store.close_in_child(is_store=child.rank == _STORE)

    def _failed(self, child: Child, error: BaseException) -> None:
        leave(LastWords.of(error), Path(self._notes.name), child.rank, child.incarnation)
