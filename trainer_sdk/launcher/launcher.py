"""The supervisor: starts a job's processes, sees them end, brings them back, and says so.

One background thread reads the zygote's events. Public methods may be called from any thread.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Self

from evenkeel.layouts.model import ModelSpec
from evenkeel.trainer_sdk.control.fleet.last_words import LastWords
from evenkeel.trainer_sdk.devices.links import LinkTable
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.launcher.description.job_spec import DeviceKind, JobSpec
from evenkeel.trainer_sdk.launcher.description.run_state import RankProcess, RunState, first_processes
from evenkeel.trainer_sdk.launcher.fleet.fleet_side import FleetSide
from evenkeel.trainer_sdk.launcher.processes.children import END_GRACE_SECONDS
from evenkeel.trainer_sdk.launcher.processes.left_words import take
from evenkeel.trainer_sdk.launcher.processes.process_reports import ProcessReports, exit_words
from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_FAILED, EXIT_FINISHED
from evenkeel.trainer_sdk.launcher.processes.restarts import Restarts
from evenkeel.trainer_sdk.launcher.processes.zygote import STORE
from evenkeel.trainer_sdk.launcher.processes.zygote_link import ZygoteLink
from evenkeel.trainer_sdk.launcher.progress.progress_board import ProgressBoard

_HANG_UP_SECONDS = 1.0
"""From the end of the zygote's socket to its own."""

_logger = logging.getLogger("evenkeel.launcher")


class Launcher:
    """Runs one job. ``start`` once, then ``wait`` or ``stop``; also a context manager that stops at its end.

    Args:
        spec: The job.
        model: The model's costs, for the planner; needed when the job registers at a fleet API.
        on_exit: Called on the launcher's thread with (rank, incarnation, exit code) when a rank's process ended;
            negative codes are signals.

    Raises:
        ValueError: The job registers and has no model.
    """

    def __init__(
        self,
        spec: JobSpec,
        model: ModelSpec | None = None,
        on_exit: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self._spec = spec
        self._on_exit = on_exit
        self._changed = threading.Condition()
        self._state = RunState(
            job_id=spec.job_id,
            supervisor_pid=os.getpid(),
            speed_table=str(spec.speed_table_path) if spec.device_kind is DeviceKind.EMULATED else "",
            link_table=str(spec.link_table_path) if spec.link_bytes_per_second else "",
            ranks=first_processes(spec),
        )
        self._restarts = Restarts(spec.restart_delay_seconds, self._restart_if_dead)
        self._link: ZygoteLink | None = None
        self._speeds: SpeedTable | None = None
        self._progress: ProgressBoard | None = None
        self._reports = ProcessReports(spec)
        self._fleet = FleetSide(spec, model)
        self._failure = ""
        self._thread = threading.Thread(target=self._read_events, name="evenkeel-launcher", daemon=True)
        self._zygote_ready = self._zygote_gone = False
        self._stopping = False
        self._stopped = threading.Event()
        self._unwritten = ""
        self._finish_timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- public

    def start(self, timeout_seconds: float = 600.0) -> None:
        """Start everything; returns when all ranks are forked (they may still be setting up).

        Raises:
            RuntimeError: The zygote ended or did not fork the ranks in time; its output says why.
        """
        spec = self._spec
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        self._speeds = SpeedTable.create(spec.speed_table_path, spec.world_size)
        self._progress = ProgressBoard.create(spec.progress_board_path, spec.world_size)
        if spec.link_bytes_per_second:
            LinkTable.create(spec.link_table_path, spec.world_size).close()
        self._reports.open()
        self._fleet.start()
        with self._changed:
            if self._stopping:
                raise RuntimeError(f"job {spec.job_id} was stopped before it had started")
            self._link = ZygoteLink(spec)
            self._state.zygote_pid = self._link.pid
        self._thread.start()
        for process in self._state.ranks:
            self._link.fork(process.rank, process.incarnation)
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._stopping or self._zygote_gone or all(process.pid for process in self._state.ranks),
                timeout_seconds,
            )
            gone = self._zygote_gone or self._stopping
        if not ready or gone:
            self.stop()
            slow = f"not all of its ranks have a process after {timeout_seconds:g} s; is the machine very busy?"
            why = (self._failure or "its zygote ended, see its output") if gone else slow
            raise RuntimeError(f"job {spec.job_id} did not start: {why}")

    @property
    def spec(self) -> JobSpec:
        """The job."""
        return self._spec

    @property
    def pids(self) -> dict[int, int]:
        """Process id of every rank that has a process now."""
        with self._changed:
            return {process.rank: process.pid for process in self._state.ranks if process.alive}

    @property
    def incarnations(self) -> dict[int, int]:
        """Newest incarnation of every rank."""
        with self._changed:
            return {process.rank: process.incarnation for process in self._state.ranks}

    @property
    def speeds(self) -> SpeedTable:
        """The table of emulated devices' speeds; available from :meth:`start` on."""
        assert self._speeds is not None, "start() first"
        return self._speeds

    @property
    def progress(self) -> ProgressBoard:
        """What ranks say of their progress; available from :meth:`start` on."""
        assert self._progress is not None, "start() first"
        return self._progress

    @property
    def standing(self) -> str:
        """What the ranks do, as the scheduler sees it; empty while no scheduler says anything."""
        return self._fleet.standing

    @property
    def store_address(self) -> str:
        """``host:port`` of the rendezvous store."""
        with self._changed:
            return self._state.store_address

    def wait_until_registered(self, timeout_seconds: float) -> bool:
        """Whether the fleet API has acknowledged the job within the timeout; False without a fleet address."""
        return self._fleet.wait_until_registered(timeout_seconds)

    def restart(self, rank: int) -> None:
        """Give a rank a new process now; one that still lives, stuck or not, is killed first.

        Raises:
            ValueError: No such rank.
        """
        with self._changed:
            process = self._process(rank)
            self._restarts.cancel(rank)
            if process.alive:
                self._restarts.await_exit(rank)
                self._kill(process)
            else:
                self._fork_again(process)

    def kill(self, rank: int) -> None:
        """``kill -9`` a rank's process; it comes back if the job restarts its dead.

        Raises:
            ValueError: No such rank.
        """
        with self._changed:
            self._kill(self._process(rank))

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for the job's end: 0 when its last ranks finished, 1 when they failed; None when it still runs."""
        with self._changed:
            if not self._changed.wait_for(self._is_over, timeout_seconds):
                return None
            if self._has_finished():
                self._failure = ""
                return 0
            return 1

    def stop(self) -> None:
        """End every process of the job, in order, and wait until all are gone. Twice is once."""
        with self._changed:
            first, self._stopping = not self._stopping, True
            self._restarts.cancel_all()
            if self._finish_timer is not None:
                self._finish_timer.cancel()
            self._changed.notify_all()
        if not first:
            self._stopped.wait()
            return
        try:
            self._fleet.stop(self._failure, is_over=self._spec.host is None or self._has_finished())
            if self._link is not None:
                # One that still loads its libraries hears nothing, and has nobody to end in order.
                grace_seconds = END_GRACE_SECONDS + 5.0 if self._zygote_ready else 0.0
                self._link.end()
                if self._thread.ident is not None:  # else the start is only about to notice
                    self._thread.join(grace_seconds)
                self._link.close(grace_seconds)
            self._reports.close()
            if self._speeds is not None:
                self._speeds.close()
            if self._progress is not None:
                self._progress.close()
        finally:
            self._stopped.set()

    # ---- the launcher's thread

    def _read_events(self) -> None:
        assert self._link is not None
        for event in self._link.events():
            match event["event"]:
                case "ready":
                    self._zygote_ready = True
                case "store":
                    self._on_store(event)
                case "forked":
                    self._on_forked(event)
                case "unforked":
                    self._on_unforked(event)
                case "exited":
                    self._on_exited(event)
        if not self._stopping:
            code = self._link.exit_code(_HANG_UP_SECONDS)
            _logger.error(
                "the parent of all ranks, process %d, ended (%s), and they with it: the job is over; run it again",
                self._link.pid,
                "it hung up" if code is None else exit_words(code),
            )
        with self._changed:
            self._zygote_gone = True
            self._on_unborn()
            orphans = [process for process in self._state.ranks if process.alive]
            for process in orphans:  # the kernel kills them with the zygote, which can no longer say so
                process.alive, process.exit_code = False, -signal.SIGKILL
            self._write_state()
            self._changed.notify_all()
        for process in orphans:
            self._reports.died(process, "its zygote ended")

    def _on_unborn(self) -> None:
        """Ranks that never got a process because their parent failed first: they ended by its error."""
        words = take(self._spec.run_dir, STORE, 0)
        unborn = [process for process in self._state.ranks if not process.pid]
        if words is None or self._stopping or not unborn:
            return
        self._failure = words.line
        for process in unborn:
            process.exit_code = EXIT_FAILED
            self._fleet.failed(words.as_exit(process.rank, process.incarnation, code=EXIT_FAILED))

    def _on_store(self, event: dict[str, Any]) -> None:
        with self._changed:
            self._state.store_address = f"{event['host']}:{event['port']}"
            self._state.store_pid, self._state.store_starts = event["pid"], event["starts"]
            self._write_state()
        if event["starts"] > 1:
            _logger.info("the rendezvous store runs again as process %d", event["pid"])

    def _on_forked(self, event: dict[str, Any]) -> None:
        with self._changed:
            process = self._process(event["rank"])
            process.incarnation, process.pid = event["incarnation"], event["pid"]
            process.alive, process.exit_code = True, None
            self._restarts.forked(process.rank)
            self._fleet.began(process.rank, process.incarnation)
            self._write_state()
            self._changed.notify_all()

    def _on_unforked(self, event: dict[str, Any]) -> None:
        if event["rank"] == STORE:
            _logger.warning("the rendezvous store gets no new process yet: %s", event["why"])
            return
        _logger.warning("rank %d gets no new process: %s", event["rank"], event["why"])
        with self._changed:
            process = self._process(event["rank"])
            process.incarnation -= 1  # which nobody has been
            process.exit_code = EXIT_FAILED
            self._restarts.forked(process.rank)  # as one that ended at once, so that the delays grow
            self._plan_restart(process)
            self._write_state()
            self._changed.notify_all()

    def _on_exited(self, event: dict[str, Any]) -> None:
        rank, code = event["rank"], event["code"]
        if rank == STORE:
            if not self._stopping:
                _logger.warning(
                    "the rendezvous store, process %d, ended (%s): it is started again at its address, and the ranks "
                    "tell it again what it knew",
                    event["pid"],
                    exit_words(code),
                )
            return
        with self._changed:
            process = self._process(rank)
            process.alive, process.exit_code = False, code
            incarnation = process.incarnation
            stopping = self._stopping
            self._fleet.ended(rank, incarnation)
            # Before the file is written: this is the fastest evidence of a death that there is.
            done = stopping or code == EXIT_FINISHED or self._finish_timer is not None
            words = take(self._spec.run_dir, rank, incarnation)
            if not done:
                self._fleet.failed((words or LastWords()).as_exit(rank, incarnation, code=code))
            tell = self._reports.finished if done else self._reports.died
            said = f"{exit_words(code)}: {words.line}" if words else exit_words(code)
            tell(process, "ended by its launcher" if stopping else said)
            if not done:
                self._failure = said
            if not stopping:
                self._plan_restart(process)
            self._write_state()
            self._changed.notify_all()
        if not stopping and code != EXIT_FINISHED:
            _logger.warning("rank %d.%d ended: %s", rank, incarnation, said)
        if self._on_exit is not None:
            self._on_exit(rank, incarnation, code)

    # ---- under the lock

    def _process(self, rank: int) -> RankProcess:
        own = self._spec.own_ranks
        if rank not in own:
            raise ValueError(f"job {self._spec.job_id} has no rank {rank} here: it has {own[0]} to {own[-1]}")
        return self._state.ranks[rank - own[0]]

    def _has_finished(self) -> bool:
        return any(process.exit_code == EXIT_FINISHED for process in self._state.ranks)

    def _is_over(self) -> bool:
        alive = any(process.alive or process.exit_code is None for process in self._state.ranks)
        return self._zygote_gone or not (alive or self._restarts.are_due)

    def _plan_restart(self, process: RankProcess) -> None:
        if process.exit_code == EXIT_FINISHED:
            self._end_soon()
        elif self._restarts.failed(process.rank, ends=self._finish_timer is not None):
            self._fork_again(process)

    def _restart_if_dead(self, rank: int) -> None:
        with self._changed:
            if self._restarts.take(rank) and not self._process(rank).alive:
                self._fork_again(self._process(rank))

    def _fork_again(self, process: RankProcess) -> None:
        if self._stopping or self._link is None:
            return
        if self._speeds is not None:
            self._speeds.set_hangs(process.rank, False)
        process.incarnation += 1
        process.pid, process.exit_code = 0, None
        self._link.fork(process.rank, process.incarnation)

    def _end_soon(self) -> None:
        """The work is done: nobody is restarted any more, and who does not end is ended."""
        if self._finish_timer is not None:
            return
        self._restarts.cancel_all()
        self._finish_timer = threading.Timer(self._spec.finish_grace_seconds, self._kill_the_rest)
        self._finish_timer.daemon = True
        self._finish_timer.start()

    def _kill_the_rest(self) -> None:
        with self._changed:
            for process in self._state.ranks:
                self._kill(process)

    def _kill(self, process: RankProcess) -> None:
        if self._link is not None and process.alive:
            self._link.signal(process.rank, process.incarnation, signal.SIGKILL)

    def _write_state(self) -> None:
        try:
            self._state.write(self._spec.run_dir)
            self._unwritten = ""
        except OSError as error:
            if str(error) != self._unwritten:  # not at each rank's end again
                self._unwritten = str(error)
                _logger.warning("the job's state cannot be written: %s", error)
