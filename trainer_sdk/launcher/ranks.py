"""The processes of a host's ranks: what became of each, who gets a new one, and when all is over."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from evenkeel.trainer_sdk.control.fleet.last_words import as_exit, take
from evenkeel.trainer_sdk.launcher.description.job_spec import DeviceKind, JobSpec
from evenkeel.trainer_sdk.launcher.description.run_state import RankProcess, RunState, first_processes
from evenkeel.trainer_sdk.launcher.fleet.fleet_side import FleetSide
from evenkeel.trainer_sdk.launcher.processes.process_reports import ProcessReports, exit_words
from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_FAILED, EXIT_FINISHED
from evenkeel.trainer_sdk.launcher.processes.restarts import Restarts
from evenkeel.trainer_sdk.launcher.processes.zygote import STORE
from evenkeel.trainer_sdk.launcher.processes.zygote_link import ZygoteLink

_logger = logging.getLogger("evenkeel.launcher")


class Ranks:
    """What the launcher's thread hears of them, and what others ask for. Any thread: all is under :attr:`changed`.

    Args:
        spec: The job.
        fleet: Hears of processes.
        reports: Hears of their ends.
        on_fork_again: Called with a rank that is about to get another process.
        on_exit: Called without the lock with (rank, incarnation, exit code) when a rank's process ended; negative
            codes are signals.

    Attributes:
        changed: Their lock, notified of each change.
        state: As ``job.json`` has it.
        failure: Why the job failed, if it has.
        link: To whoever forks them; None before there is one.
        stopping: Nobody gets a new process any more.
        zygote_gone: There is nobody left to fork.
    """

    def __init__(
        self,
        spec: JobSpec,
        fleet: FleetSide,
        reports: ProcessReports,
        on_fork_again: Callable[[int], None],
        on_exit: Callable[[int, int, int], None] | None,
    ) -> None:
        self._spec, self._fleet, self._reports = spec, fleet, reports
        self._on_fork_again, self._on_exit = on_fork_again, on_exit
        self.changed = threading.Condition()
        self.state = RunState(
            job_id=spec.job_id,
            supervisor_pid=os.getpid(),
            speed_table=str(spec.speed_table_path) if spec.device_kind is DeviceKind.EMULATED else "",
            link_table=str(spec.link_table_path) if spec.link_bytes_per_second else "",
            ranks=first_processes(spec),
        )
        self.failure = ""
        self.link: ZygoteLink | None = None
        self.stopping = self.zygote_gone = False
        self._restarts = Restarts(spec.restart_delay_seconds, self._restart_if_dead)
        self._finish_timer: threading.Timer | None = None
        self._unwritten = ""

    # ---- what is asked

    @property
    def have_finished(self) -> bool:
        """One of them has done the job's work."""
        return any(process.exit_code == EXIT_FINISHED for process in self.state.ranks)

    def are_over(self) -> bool:
        """Nobody lives, nor will again."""
        alive = any(process.alive or process.exit_code is None for process in self.state.ranks)
        return self.zygote_gone or not (alive or self._restarts.are_due)

    def begin(self, link: ZygoteLink) -> None:
        """Fork all of them.

        Raises:
            RuntimeError: They are to end already.
        """
        with self.changed:
            if self.stopping:
                link.close(0.0)
                raise RuntimeError(f"job {self._spec.job_id} was stopped before it had started")
            self.link, self.state.zygote_pid = link, link.pid
        for process in self.state.ranks:
            link.fork(process.rank, process.incarnation)

    def restart(self, rank: int) -> None:
        """See :meth:`Launcher.restart`."""
        with self.changed:
            process = self._process(rank)
            self._restarts.cancel(rank)
            if process.alive:
                self._restarts.await_exit(rank)
                self._kill(process)
            else:
                self._fork_again(process)

    def kill(self, rank: int) -> None:
        """See :meth:`Launcher.kill`."""
        with self.changed:
            self._kill(self._process(rank))

    def stop(self) -> bool:
        """Nobody gets a new process any more; whether this was the first to say so."""
        with self.changed:
            first, self.stopping = not self.stopping, True
            self._restarts.cancel_all()
            if self._finish_timer is not None:
                self._finish_timer.cancel()
            self.changed.notify_all()
            return first

    # ---- what happens

    def on_event(self, event: dict[str, Any]) -> None:
        """Something that the zygote tells."""
        match event["event"]:
            case "store":
                self._on_store(event)
            case "forked":
                self._on_forked(event)
            case "unforked":
                self._on_unforked(event)
            case "exited":
                self._on_exited(event)

    def on_zygote_gone(self) -> None:
        """And they with it."""
        with self.changed:
            self.zygote_gone = True
            self._on_unborn()
            orphans = [process for process in self.state.ranks if process.alive]
            for process in orphans:  # the kernel kills them with the zygote, which can no longer say so
                process.alive, process.exit_code = False, -signal.SIGKILL
            self._write_state()
            self.changed.notify_all()
        for process in orphans:
            self._reports.died(process, "its zygote ended")

    def _on_unborn(self) -> None:
        """Ranks that never got a process because their parent failed first: they ended by its error."""
        words = take(self._spec.run_dir, STORE, 0)
        unborn = [process for process in self.state.ranks if not process.pid]
        if not words.last_line or self.stopping or not unborn:
            return
        self.failure = words.last_line
        for process in unborn:
            process.exit_code = EXIT_FAILED
            self._fleet.failed(as_exit(words, process.rank, process.incarnation, code=EXIT_FAILED))

    def _on_store(self, event: dict[str, Any]) -> None:
        with self.changed:
            self.state.store_address = f"{event['host']}:{event['port']}"
            self.state.store_pid, self.state.store_starts = event["pid"], event["starts"]
            self._write_state()
        if event["starts"] > 1:
            _logger.info("the rendezvous store runs again as process %d", event["pid"])

    def _on_forked(self, event: dict[str, Any]) -> None:
        with self.changed:
            process = self._process(event["rank"])
            process.incarnation, process.pid = event["incarnation"], event["pid"]
            process.alive, process.exit_code = True, None
            self._restarts.forked(process.rank)
            self._fleet.began(process.rank, process.incarnation)
            self._write_state()
            self.changed.notify_all()

    def _on_unforked(self, event: dict[str, Any]) -> None:
        if event["rank"] == STORE:
            _logger.warning("the rendezvous store gets no new process yet: %s", event["why"])
            return
        _logger.warning("rank %d gets no new process: %s", event["rank"], event["why"])
        with self.changed:
            process = self._process(event["rank"])
            process.incarnation -= 1  # which nobody has been
            process.exit_code = EXIT_FAILED
            self._restarts.forked(process.rank)  # as one that ended at once, so that the delays grow
            self._plan_restart(process)
            self._write_state()
            self.changed.notify_all()

    def _on_exited(self, event: dict[str, Any]) -> None:
        rank, code = event["rank"], event["code"]
        if rank == STORE:
            if not self.stopping:
                _logger.warning(
                    "the rendezvous store, process %d, ended (%s): it is started again at its address, and the ranks "
                    "tell it again what it knew",
                    event["pid"],
                    exit_words(code),
                )
            return
        with self.changed:
            process = self._process(rank)
            process.alive, process.exit_code = False, code
            incarnation = process.incarnation
            stopping = self.stopping
            self._fleet.ended(rank, incarnation)
            # Before the file is written: this is the fastest evidence of a death that there is.
            done = stopping or code == EXIT_FINISHED or self._finish_timer is not None
            words = take(self._spec.run_dir, rank, incarnation)
            if not done:
                self._fleet.failed(as_exit(words, rank, incarnation, code=code))
            tell = self._reports.finished if done else self._reports.died
            said = f"{exit_words(code)}: {words.last_line}" if words.last_line else exit_words(code)
            tell(process, "ended by its launcher" if stopping else said)
            if not done:
                self.failure = said
            if not stopping:
                self._plan_restart(process)
            self._write_state()
            self.changed.notify_all()
        if not stopping and code != EXIT_FINISHED:
            _logger.warning("rank %d.%d ended: %s", rank, incarnation, said)
        if self._on_exit is not None:
            self._on_exit(rank, incarnation, code)

    # ---- under the lock

    def _process(self, rank: int) -> RankProcess:
        own = self._spec.own_ranks
        if rank not in own:
            raise ValueError(f"job {self._spec.job_id} has no rank {rank} here: it has {own[0]} to {own[-1]}")
        return self.state.ranks[rank - own[0]]

    def _plan_restart(self, process: RankProcess) -> None:
        if process.exit_code == EXIT_FINISHED:
            self._end_soon()
        elif self._restarts.failed(process.rank, ends=self._finish_timer is not None):
            self._fork_again(process)

    def _restart_if_dead(self, rank: int) -> None:
        with self.changed:
            if self._restarts.take(rank) and not self._process(rank).alive:
                self._fork_again(self._process(rank))

    def _fork_again(self, process: RankProcess) -> None:
        if self.stopping or self.link is None:
            return
        self._on_fork_again(process.rank)
        process.incarnation += 1
        process.pid, process.exit_code = 0, None
        self.link.fork(process.rank, process.incarnation)

    def _end_soon(self) -> None:
        """The work is done: nobody is restarted any more, and who does not end is ended."""
        if self._finish_timer is not None:
            return
        self._restarts.cancel_all()
        self._finish_timer = threading.Timer(self._spec.finish_grace_seconds, self._kill_the_rest)
        self._finish_timer.daemon = True
        self._finish_timer.start()

    def _kill_the_rest(self) -> None:
        with self.changed:
            for process in self.state.ranks:
                self._kill(process)

    def _kill(self, process: RankProcess) -> None:
        if self.link is not None and process.alive:
            self.link.signal(process.rank, process.incarnation, signal.SIGKILL)

    def _write_state(self) -> None:
        try:
            self.state.write(self._spec.run_dir)
            self._unwritten = ""
        except OSError as error:
            if str(error) != self._unwritten:  # not at each rank's end again
                self._unwritten = str(error)
                _logger.warning("the job's state cannot be written: %s", error)
