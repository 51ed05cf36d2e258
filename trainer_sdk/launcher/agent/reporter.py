"""Tells the fleet API how this host's ranks ended, from a process of its own: the agent forks, so it has one thread."""

import contextlib
import logging
import signal
from collections.abc import Mapping
from multiprocessing.connection import Pipe
from typing import Self

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import FleetAccess
from evenkeel.trainer_sdk.launcher.fleet.exit_reports import ExitReports

_logger = logging.getLogger("evenkeel.launch")


class Reporter:
    """The agent's side is :meth:`tell` and :meth:`close`; :meth:`run` is what the process does.

    Args:
        access: The job's way to the fleet API.
    """

    def __init__(self, access: FleetAccess) -> None:
        self._access = access
        self._reader, self._writer = Pipe(duplex=False)

    @classmethod
    def from_environment(cls, settings: Mapping[str, str], job_id: str) -> Self | None:
        """None where there is no fleet API to tell.

        Args:
            settings: The environment.
            job_id: Job.
        """
        access = FleetAccess.from_settings(settings, job_id)
        if access.address and not access.job_token:
            _logger.warning("EVENKEEL_JOB_TOKEN is not set: the fleet API is not told how ranks end")
        return cls(access) if access.address and access.job_token else None

    def tell(self, one: pb.RankExit) -> None:
        """A process has ended."""
        self._writer.send_bytes(one.SerializeToString())

    def run(self) -> int:
        """Tell until nobody says anything any more; in a child, which SIGTERM does not end before that."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._writer.close()
        reports = ExitReports(self._access)
        reports.start()
        with contextlib.suppress(EOFError):
            while True:
                reports.tell(pb.RankExit.FromString(self._reader.recv_bytes()))
        reports.stop()
        return 0

    def close(self) -> None:
        """Nothing more is said: the process ends once the fleet API has heard all. In other children: let go."""
        self._writer.close()
