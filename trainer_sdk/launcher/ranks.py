"""The processes of a host's ranks, as the zygote tells of them: what became of each, and when all is over."""

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
from evenkeel.trainer_sdk.launcher.processes.host import STORE
from evenkeel.trainer_sdk.launcher.processes.process_reports import ProcessReports, exit_words
from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_FAILED, EXIT_FINISHED
from evenkeel.trainer_sdk.launcher.processes.zygote_link import ZygoteLink

_logger = logging.getLogger("evenkeel.launcher")


class Ranks:
    """What the launcher's thread hears of them, and what others ask for. Any thread: all is under :attr:`changed`.

    Args:
        spec: The job.
        fleet: Hears of processes.
        reports: Hears of their ends.
        on_exit: Called without the lock with (rank, incarnation, exit code) when a rank's process ended; negative
            codes are signals.

    Attributes:
        changed: Their lock, notified of each change.
        state: As ``job.json`` has it.
        failure: Why the job failed, if it has.
        link: To whoever forks them, and brings them back; None before there is one.
        stopping: Nobody gets a new process any more.
        zygote_gone: There is nobody left to fork.
    """

    def __init__(
        self,
        spec: JobSpec,
        fleet: FleetSide,
        reports: ProcessReports,
        on_exit: Callable[[int, int, int], None] | None,
    ) -> None:
        self._spec, self._fleet, self._reports = spec, fleet, reports
        self._on_exit = on_exit
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
        self._due: set[int] = set()
        self._unwritten = ""

    # ---- what is asked

    @property
    def have_finished(self) -> bool:
        """One of them has done the job's work."""
        return any(process.exit_code == EXIT_FINISHED for process in self.state.ranks)

    def are_over(self) -> bool:
        """Nobody lives, nor will again."""
        alive = any(process.alive or process.exit_code is None for process in self.state.ranks)
        return self.zygote_gone or not (alive or self._due)

    def begin(self, link: ZygoteLink) -> None:
        """This forks all of them.

        Raises:
            RuntimeError: They are to end already.
        """
        with self.changed:
            if self.stopping:
                link.close(0.0)
                raise RuntimeError(f"job {self._spec.job_id} was stopped before it had started")
            self.link, self.state.zygote_pid = link, link.pid

    def restart(self, rank: int) -> None:
        """See :meth:`Launcher.restart`."""
        with self.changed:
            process = self._process(rank)
            if self.link is None or self.stopping:
                return
            if not process.alive:
                process.pid, process.exit_code = 0, None
            self.link.restart(rank)

    def kill(self, rank: int) -> None:
        """See :meth:`Launcher.kill`."""
        with self.changed:
            process = self._process(rank)
            if self.link is not None and process.alive:
                self.link.kill(rank)

    def stop(self) -> bool:
        """Nobody gets a new process any more; whether this was the first to say so."""
        with self.changed:
            first, self.stopping = not self.stopping, True
            self.changed.notify_all()
            return first

    # ---- what happens

    def on_event(self, event: dict[str, Any]) -> None:
        """Something that the zygote tells."""
        match event["event"]:
            case "store":
                self._on_store(event)
            case "store ended":
                self._on_store_ended(event)
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
            self._reports.ended(process, "its zygote ended")

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

    def _on_store_ended(self, event: dict[str, Any]) -> None:
        if not self.stopping:
            _logger.warning(
                "the rendezvous store, process %d, ended (%s): it is started again at its address, and the ranks "
                "tell it again what it knew",
                event["pid"],
                exit_words(event["code"]),
            )

    def _on_forked(self, event: dict[str, Any]) -> None:
        with self.changed:
            process = self._process(event["rank"])
            process.incarnation, process.pid = event["incarnation"], event["pid"]
            process.alive, process.exit_code = True, None
            self._due.discard(process.rank)
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
            process.exit_code, self._due = EXIT_FAILED, set(event["due"])
            self._write_state()
            self.changed.notify_all()

    def _on_exited(self, event: dict[str, Any]) -> None:
        rank, code = event["rank"], event["code"]
        with self.changed:
            process = self._process(rank)
            process.alive, process.exit_code, self._due = False, code, set(event["due"])
            incarnation = process.incarnation
            stopping = self.stopping
            self._fleet.ended(rank, incarnation)
            # Before the file is written: this is the fastest evidence of a death that there is.
            done = stopping or self.have_finished
            words = take(self._spec.run_dir, rank, incarnation)
            if not done:
                self._fleet.failed(as_exit(words, rank, incarnation, code=code))
            said = f"{exit_words(code)}: {words.last_line}" if words.last_line else exit_words(code)
            self._reports.ended(process, "ended by its launcher" if stopping else said, in_order=done)
            if not done:
                self.failure = said
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

    def _write_state(self) -> None:
        try:
            self.state.write(self._spec.run_dir)
            self._unwritten = ""
        except OSError as error:
            if str(error) != self._unwritten:  # not at each rank's end again
                self._unwritten = str(error)
                _logger.warning("the job's state cannot be written: %s", error)
