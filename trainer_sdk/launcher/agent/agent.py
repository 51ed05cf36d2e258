"""One host's part of a job: its ranks, their replacements, and one of the job's stores where the list says so.

No agent is special. One that dies takes its host's ranks along, and the other hosts go on; one that is started again
has its ranks join them. Agents say nothing to one another.
"""

import gc
import logging
import os
import secrets
import select
import shutil
import signal
import socket
import tempfile
import time
from functools import partial
from pathlib import Path

from evenkeel.trainer_sdk.control.fleet.last_words import as_exit, leave, take
from evenkeel.trainer_sdk.launcher.agent.outcasts import tell_outcasts
from evenkeel.trainer_sdk.launcher.agent.replica import Replica
from evenkeel.trainer_sdk.launcher.agent.reporter import Reporter
from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from evenkeel.trainer_sdk.launcher.agent.script_rank import run_script
from evenkeel.trainer_sdk.launcher.processes.children import Child, Children
from evenkeel.trainer_sdk.launcher.processes.process_reports import exit_words
from evenkeel.trainer_sdk.launcher.processes.store_keeper import StoreKeeper

_STORE = -1
_OUTCASTS = -2
_REPORTER = -3  # stand in for ranks
_OUTCAST_GRACE_SECONDS = 5.0
_FINISH_GRACE_SECONDS = 30.0
_logger = logging.getLogger("evenkeel.launch")


class Agent:
    """Runs this host's replicas to their end. Main thread, and no other.

    Args:
        job: The job.
    """

    def __init__(self, job: ScriptJob) -> None:
        self._job = job
        self._notes = Path(tempfile.mkdtemp(prefix="evenkeel-launch-"))
        self._children = Children(self._let_go, self._failed)
        fork_store = partial(self._children.fork, Child(_STORE, 0))
        self._store = StoreKeeper.of_this_host(job.job_id, job.stores, fork_store)
        own = "" if self._store is None else "{}:{}".format(*self._store.address)
        self._stores = ",".join(job.stores) or own
        self._outcasts, self._told = os.pipe()
        self._unread = b""
        self._replicas = [Replica(each) for each in job.replicas]
        self._reporter = Reporter.from_environment(os.environ, job.job_id)
        self._ends_at: float | None = None
        self._received = 0

    def run(self) -> int:
        """Returns 0 when every replica has finished, 1 when one was given up, 128 + n when signal n ended it."""
        if self._store is not None and self._job.stores:
            _logger.info("this host has the store at %s:%d", *self._store.address)
        self._children.listen()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        gc.freeze()
        self._follow()
        self._report()
        sources: list[socket.socket | int] = [self._children.wake, self._outcasts]
        try:
            while not self._received and not all(each.is_over for each in self._replicas):
                self._start_what_is_due()
                readable, _, _ = select.select(sources, [], [], self._seconds_to_wait())
                if self._outcasts in readable:
                    self._on_outcasts()
                for found in self._children.reap():
                    self._on_end(*found)
        finally:
            if self._reporter is not None:
                self._reporter.close()
            self._children.end_all(lambda *_: None)
            shutil.rmtree(self._notes, ignore_errors=True)
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
            if self._received:
                return
            _logger.warning("this host's store, process %d, ended (%s): it is started again", pid, exit_words(code))
            return
        if child.rank == _OUTCASTS:
            self._follow()
            return
        if child.rank == _REPORTER:
            self._report()
            return
        replica = self._replicas[child.rank // self._job.replica_size - self._job.replicas.start]
        is_cause = replica.ended(child.rank, code)
        words = take(self._notes, child.rank, child.incarnation)
        ended_by_us = self._received or (self._ends_at is not None and not words.last_line)
        if is_cause and self._reporter is not None and not ended_by_us:
            self._reporter.tell(as_exit(words, replica.number, replica.incarnation, code=code))
        if code and not self._received:
            said = f"{exit_words(code)}: {words.last_line}" if words.last_line else exit_words(code)
            _logger.warning("replica %d: rank %d.%d ended: %s", replica.number, child.rank, child.incarnation, said)
            for rank in replica.alive:  # a replica lives or dies as one
                self._children.signal(Child(rank, child.incarnation), signal.SIGKILL)
        if not replica.alive:
            self._on_replica_end(replica)

    def _on_outcasts(self) -> None:
        """The others have gone on without some replicas: end those of ours that do not end by themselves soon."""
        *lines, self._unread = (self._unread + os.read(self._outcasts, 1 << 16)).split(b"\n")
        tokens = {line.decode() for line in lines}
        for replica in self._replicas:
            if replica.token in tokens and replica.alive:
                replica.ends_at = time.monotonic() + _OUTCAST_GRACE_SECONDS

    def _follow(self) -> None:
        follow = partial(tell_outcasts, self._stores, self._job.job_id, self._told)
        self._children.fork(Child(_OUTCASTS, 0), follow)

    def _report(self) -> None:
        if self._reporter is not None:
            self._children.fork(Child(_REPORTER, 0), self._reporter.run)

    def _on_replica_end(self, replica: Replica) -> None:
        if replica.has_finished:
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
        replica.plan_restart(time.monotonic())

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        if self._store is not None and self._store.due_in_seconds == 0.0:
            self._store.start()
        for replica in self._replicas:
            if now > min(replica.ends_at, self._ends_at or replica.ends_at):
                for rank in replica.alive:
                    self._children.signal(Child(rank, replica.incarnation), signal.SIGKILL)
        for replica in self._replicas:
            if not replica.is_over and replica.due_at is not None and replica.due_at <= now:
                self._start(replica)

    def _start(self, replica: Replica) -> None:
        replica.begin(time.monotonic(), secrets.token_hex(8))
        size, incarnation = self._job.replica_size, replica.incarnation
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = int(listener.getsockname()[1])
        for index in range(size):
            child = Child(replica.number * size + index, incarnation)
            settings = self._job.settings(
                replica.number, index, incarnation, token=replica.token, stores=self._stores, port=port
            )
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
        due += [max(each.ends_at, now + 0.1) for each in self._replicas if each.alive and each.ends_at < float("inf")]
        if self._store is not None and self._store.due_in_seconds is not None:
            due.append(now + self._store.due_in_seconds)
        return max(0.0, min(due) - now) if due else None

    # ---- in a child

    def _let_go(self, child: Child) -> None:
        os.close(self._outcasts)
        if child.rank != _OUTCASTS:
            os.close(self._told)
        if child.rank != _REPORTER and self._reporter is not None:
            self._reporter.close()
        if self._store is not None:
            self._store.close_in_child(is_store=child.rank == _STORE)

    def _failed(self, child: Child, error: BaseException) -> None:
        leave(error, self._notes, child.rank, child.incarnation)
