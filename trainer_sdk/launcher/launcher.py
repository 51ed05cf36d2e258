"""The supervisor: starts a job's processes, sees them end, brings them back, and says so.

One background thread reads the zygote's events. Public methods may be called from any thread.
"""

import logging
import threading
from collections.abc import Callable
from typing import Self

from evenkeel.layouts.model import ModelSpec
from evenkeel.trainer_sdk.devices.links import LinkTable
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.fleet.fleet_side import FleetSide
from evenkeel.trainer_sdk.launcher.fleet.rank_notes import RankNotes
from evenkeel.trainer_sdk.launcher.processes.children import END_GRACE_SECONDS
from evenkeel.trainer_sdk.launcher.processes.process_reports import ProcessReports, exit_words
from evenkeel.trainer_sdk.launcher.processes.zygote_link import ZygoteLink
from evenkeel.trainer_sdk.launcher.progress.progress_board import ProgressBoard
from evenkeel.trainer_sdk.launcher.ranks import Ranks

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
        self._speeds: SpeedTable | None = None
        self._progress: ProgressBoard | None = None
        self._reports = ProcessReports(spec)
        self._fleet = FleetSide(
            spec.access, job=spec.registration(model), fleet_token=spec.fleet_token, notes=RankNotes(spec.run_dir)
        )
        self._ranks = Ranks(spec, self._fleet, self._reports, on_exit)
        self._thread = threading.Thread(target=self._read_events, name="evenkeel-launcher", daemon=True)
        self._zygote_ready = False
        self._stopped = threading.Event()

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
        ranks = self._ranks
        ranks.begin(ZygoteLink(spec, self.incarnations))
        self._thread.start()
        with ranks.changed:
            ready = ranks.changed.wait_for(
                lambda: ranks.stopping or ranks.zygote_gone or all(process.pid for process in ranks.state.ranks),
                timeout_seconds,
            )
            gone = ranks.zygote_gone or ranks.stopping
        if not ready or gone:
            self.stop()
            slow = f"not all of its ranks have a process after {timeout_seconds:g} s; is the machine very busy?"
            why = (ranks.failure or "its zygote ended, see its output") if gone else slow
            raise RuntimeError(f"job {spec.job_id} did not start: {why}")

    @property
    def spec(self) -> JobSpec:
        """The job."""
        return self._spec

    @property
    def pids(self) -> dict[int, int]:
        """Process id of every rank that has a process now."""
        with self._ranks.changed:
            return {process.rank: process.pid for process in self._ranks.state.ranks if process.alive}

    @property
    def incarnations(self) -> dict[int, int]:
        """Newest incarnation of every rank."""
        with self._ranks.changed:
            return {process.rank: process.incarnation for process in self._ranks.state.ranks}

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

    def wait_until_registered(self, timeout_seconds: float) -> bool:
        """Whether the fleet API has acknowledged the job within the timeout; False without a fleet address."""
        return self._fleet.wait_until_registered(timeout_seconds)

    def restart(self, rank: int) -> None:
        """Give a rank a new process now; one that still lives, stuck or not, is killed first.

        Raises:
            ValueError: No such rank.
        """
        self._ranks.restart(rank)

    def kill(self, rank: int) -> None:
        """``kill -9`` a rank's process; it comes back if the job restarts its dead.

        Raises:
            ValueError: No such rank.
        """
        self._ranks.kill(rank)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for the job's end: 0 when its last ranks finished, 1 when they failed; None when it still runs."""
        ranks = self._ranks
        with ranks.changed:
            if not ranks.changed.wait_for(ranks.are_over, timeout_seconds):
                return None
            if ranks.have_finished:
                ranks.failure = ""
                return 0
            return 1

    def stop(self) -> None:
        """End every process of the job, in order, and wait until all are gone. Twice is once."""
        if not self._ranks.stop():
            self._stopped.wait()
            return
        try:
            link, is_over = self._ranks.link, self._spec.host is None or self._ranks.have_finished
            self._fleet.stop(self._ranks.failure, is_over=is_over)
            if link is not None:
                # One that still loads its libraries hears nothing, and has nobody to end in order.
                grace_seconds = END_GRACE_SECONDS + 5.0 if self._zygote_ready else 0.0
                link.end()
                if self._thread.ident is not None:  # else the start is only about to notice
                    self._thread.join(grace_seconds)
                link.close(grace_seconds)
            self._reports.close()
            if self._speeds is not None:
                self._speeds.close()
            if self._progress is not None:
                self._progress.close()
        finally:
            self._stopped.set()

    # ---- the launcher's thread

    def _read_events(self) -> None:
        link = self._ranks.link
        assert link is not None, "it is read once it is there"
        for event in link.events():
            self._zygote_ready |= event["event"] == "ready"
            self._ranks.on_event(event)
        if not self._ranks.stopping:
            code = link.exit_code(_HANG_UP_SECONDS)
            _logger.error(
                "the parent of all ranks, process %d, ended (%s), and they with it: the job is over; run it again",
                link.pid,
                "it hung up" if code is None else exit_words(code),
            )
        self._ranks.on_zygote_gone()
