"""The supervisor: starts a job's processes, sees them end, brings them back, and says so.

One background thread hears what the zygote tells. Public methods may be called from any thread.
"""

import logging
import signal
import threading
from typing import Any, Self

from evenkeel.contracts.columns import LAUNCHER_INCARNATION, NO_RANK
from evenkeel.layouts.model import ModelSpec
from evenkeel.telemetry.v2 import process_pb2
from evenkeel.trainer_sdk.control.fleet.last_words import as_exit, exit_words, take
from evenkeel.trainer_sdk.devices.links import LinkTable
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.emit.batch import Source
from evenkeel.trainer_sdk.emit.emitter import Emitter, process_event
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.description.run_state import RankProcess, first_state
from evenkeel.trainer_sdk.launcher.fleet_side import FleetSide
from evenkeel.trainer_sdk.launcher.processes.children import END_GRACE_SECONDS, EXIT_FAILED
from evenkeel.trainer_sdk.launcher.processes.host import STORE
from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_FINISHED
from evenkeel.trainer_sdk.launcher.processes.zygote_link import ZygoteLink
from evenkeel.trainer_sdk.launcher.progress.progress_board import ProgressBoard

_HANG_UP_SECONDS = 10.0
"""From the end of the zygote's connection to its own, on a busy machine."""
_LAST_WORDS_SECONDS = 5.0
"""How long the end waits for Kafka to take what was said of the ranks' ends."""

_logger = logging.getLogger("evenkeel.launcher")


class Launcher:
    """Runs one job. ``start`` once, then ``wait`` or ``stop``; also a context manager that stops at its end.

    Args:
        spec: The job.
        model: The model's costs, for the planner; needed when the job registers at a fleet API.

    Raises:
        ValueError: The job registers and has no model.

    Attributes:
        spec: The job.
    """

    def __init__(self, spec: JobSpec, model: ModelSpec | None = None) -> None:
        self.spec = spec
        self._emitter = Emitter()
        self._fleet = FleetSide(spec.fleet(spec.job_id), job=spec.registration(model), fleet_token=spec.fleet_token)
        self._progress: ProgressBoard | None = None
        self._thread = threading.Thread(target=self._listen, name="evenkeel-launcher", daemon=True)
        self._stopped = threading.Event()
        self._changed = threading.Condition()  # what follows is under it
        self._state = first_state(spec)
        self._link: ZygoteLink | None = None
        self._failure = ""
        self._is_stopping = self._is_gone = False  # we end the zygote; it has ended
        self._unwritten = ""

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
        spec = self.spec
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        SpeedTable.create(spec.speed_table_path, spec.world_size).close()
        self._progress = ProgressBoard.create(spec.progress_board_path, spec.world_size)
        if spec.link_bytes_per_second:
            LinkTable.create(spec.link_table_path, spec.world_size).close()
        source = Source(
            job_id=spec.job_id,
            rank=NO_RANK,
            incarnation=LAUNCHER_INCARNATION + (spec.host or 0),
            node=spec.node_of(spec.own_ranks[0]),
        )
        self._emitter = spec.emitter(source, is_rank=False)
        self._fleet.start()
        link = ZygoteLink(spec, {process.rank: process.incarnation for process in self._state.ranks})
        with self._changed:
            if self._is_stopping:
                link.close(0.0)
                raise RuntimeError(f"job {spec.job_id} did not start: it was stopped before")
            self._link, self._state.zygote_pid = link, link.pid
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._is_gone or self._is_forked(), timeout_seconds)
            gone = self._is_gone or self._is_stopping
            has_started = self._is_forked() and not self._is_stopping
        if not has_started:
            self.stop()
            slow = f"not all of its ranks have a process after {timeout_seconds:g} s; is the machine very busy?"
            why = (self._failure or "its zygote ended, see its output") if gone else slow
            raise RuntimeError(f"job {spec.job_id} did not start: {why}")

    @property
    def pids(self) -> dict[int, int]:
        """Process id of every rank that has a process now."""
        with self._changed:
            return {process.rank: process.pid for process in self._state.ranks if process.alive}

    @property
    def progress(self) -> ProgressBoard:
        """What ranks say of their progress; available from :meth:`start` on."""
        assert self._progress is not None, "start() first"
        return self._progress

    def restart(self, rank: int) -> None:
        """Give a rank a new process now; one that still lives, stuck or not, is killed first.

        Raises:
            ValueError: No such rank.
        """
        with self._changed:
            self._state.process(rank)
            if self._link is not None:
                self._link.restart(rank)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for the job's end: 0 when its last ranks finished, 1 when they failed; None when it still runs."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_gone, timeout_seconds):
                return None
            if self._has_finished():
                self._failure = ""
                return 0
            return 1

    def stop(self) -> None:
        """End every process of the job, in order, and wait until all are gone. Twice is once."""
        with self._changed:
            is_first, self._is_stopping = not self._is_stopping, True
            self._changed.notify_all()
        if not is_first:
            self._stopped.wait()
            return
        try:
            self._fleet.stop(self._failure, is_over=self.spec.host is None or self._has_finished())
            if self._link is not None:
                # One that still loads its libraries hears nothing, and has nobody to end in order.
                is_loaded = bool(self._state.store_pid) or any(process.pid for process in self._state.ranks)
                grace_seconds = END_GRACE_SECONDS + 5.0 if is_loaded else 0.0
                self._link.end()
                if self._thread.ident is not None:  # else the start is only about to notice
                    self._thread.join(grace_seconds)
                self._link.close(grace_seconds)
            self._emitter.close(_LAST_WORDS_SECONDS)
            if self._progress is not None:
                self._progress.close()
        finally:
            self._stopped.set()

    # ---- the launcher's thread

    def _listen(self) -> None:
        link = self._link
        assert link is not None, "it is listened to once it is there"
        for event, facts in link.events():
            match event:
                case "store":
                    self._state.store_address = facts["address"]
                case "forked":
                    self._on_forked(**facts)
                case "unforked":
                    who = "the rendezvous store" if facts["rank"] == STORE else f"rank {facts['rank']}"
                    _logger.warning("%s gets no new process: %s", who, facts["why"])
                case "exited" if facts["rank"] == STORE:
                    _logger.warning(
                        "the rendezvous store, process %d, ended (%s): it is started again at its address, and the "
                        "ranks tell it again what it knew",
                        facts["pid"],
                        exit_words(facts["code"]),
                    )
                case "exited":
                    self._on_exited(**facts)
        code = link.exit_code(_HANG_UP_SECONDS)
        if code != 0 and not self._is_stopping:
            _logger.error(
                "the parent of all ranks, process %d, ended (%s), and they with it: the job is over; run it again",
                link.pid,
                "it hung up" if code is None else exit_words(code),
            )
        self._on_gone()

    def _on_gone(self) -> None:
        """The zygote has ended, and all ranks with it."""
        with self._changed:
            self._is_gone = True
            words = take(self.spec.run_dir, STORE, 0)
            for process in self._state.ranks:
                if process.alive:  # the kernel kills it with the zygote, which can no longer say so
                    process.alive, process.exit_code = False, -signal.SIGKILL
                    self._emit_end(process, "its zygote ended")
                elif not process.pid and words.last_line and not self._is_stopping:
                    # It never got a process, because its parent failed first: it ended by that error.
                    self._failure, process.exit_code = words.last_line, EXIT_FAILED
                    self._fleet.failed(as_exit(words, process.rank, process.incarnation, code=EXIT_FAILED))
            self._has_changed()

    def _on_forked(self, *, rank: int, incarnation: int, pid: int) -> None:
        with self._changed:
            if rank == STORE:
                self._state.store_pid, self._state.store_starts = pid, 1 + incarnation
            else:
                process = self._state.process(rank)
                process.incarnation, process.pid = incarnation, pid
                process.alive, process.exit_code = True, None
            self._has_changed()
        if rank == STORE and incarnation:
            _logger.info("the rendezvous store runs again as process %d", pid)

    def _on_exited(self, *, rank: int, incarnation: int, code: int, **_: Any) -> None:
        words = take(self.spec.run_dir, rank, incarnation)
        said = exit_words(code, words.last_line)
        with self._changed:
            process = self._state.process(rank)
            process.alive, process.exit_code = False, code
            in_order = self._is_stopping or self._has_finished()
            # Before the file is written: this is the fastest evidence of a death that there is.
            if not in_order:
                self._failure = said
                self._fleet.failed(as_exit(words, rank, incarnation, code=code))
            self._emit_end(process, "ended by its launcher" if self._is_stopping else said, in_order=in_order)
            if not self._is_stopping and code != EXIT_FINISHED:
                _logger.warning("rank %d.%d ended: %s", rank, incarnation, said)
            self._has_changed()

    # ---- under the lock

    def _emit_end(self, process: RankProcess, detail: str, *, in_order: bool = False) -> None:
        kind = process_pb2.PROCESS_EVENT_KIND_FINISHED if in_order else process_pb2.PROCESS_EVENT_KIND_DIED
        self._emitter.emit_event(process_event(kind, process.rank, process.incarnation, detail))

    def _is_forked(self) -> bool:
        """Every rank has, or had, a process."""
        return all(process.pid for process in self._state.ranks)

    def _has_finished(self) -> bool:
        """A rank has done the job's work."""
        return any(process.exit_code == EXIT_FINISHED for process in self._state.ranks)

    def _has_changed(self) -> None:
        """The state is another one: for those who wait, and for those who read its file."""
        self._changed.notify_all()
        try:
            self._state.write(self.spec.run_dir)
            self._unwritten = ""
        except OSError as error:
            if str(error) != self._unwritten:  # not at each rank's end again
                self._unwritten = str(error)
                _logger.warning("the job's state cannot be written: %s", error)
