"""One host's part of a job: its replicas, their replacements, and one of the job's stores where the list says so.

No agent is special. One that dies takes its host's ranks along, and the other hosts go on; one that is started again
has its ranks join them. Agents say nothing to one another.
"""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.last_words import as_exit, exit_words, take
from evenkeel.trainer_sdk.groups.store.ledger import Ledger
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from evenkeel.trainer_sdk.launcher.agent.script_rank import run_script
from evenkeel.trainer_sdk.launcher.fleet_side import FleetSide
from evenkeel.trainer_sdk.launcher.processes.children import Child
from evenkeel.trainer_sdk.launcher.processes.host import HELPER, STORE, Host
from evenkeel.trainer_sdk.launcher.processes.unit import Unit
from evenkeel.trainer_sdk.replicas.membership.director import BEGIN_ANEW_SECONDS, LOG
from evenkeel.trainer_sdk.replicas.membership.roster import Gone, entry_from_text
from evenkeel.trainer_sdk.replicas.place import hang_seconds_of
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings

_OUTCAST_GRACE_SECONDS = 5.0
_logger = logging.getLogger("evenkeel.launch")


class Agent(Host):
    """Runs this host's replicas to their end; each of them is a unit.

    Args:
        job: The job.

    Raises:
        ValueError: EVENKEEL_HANG_SECONDS is no number above 0.
    """

    def __init__(self, job: ScriptJob) -> None:
        size = job.replica_size
        # One that comes too late waits for a while, one that saves the model may take as long as in a step.
        finish_grace_seconds = BEGIN_ANEW_SECONDS + hang_seconds_of(os.environ)
        super().__init__(
            job_id=job.job_id,
            stores=job.stores,
            units=[Unit(range(size * replica, size * (replica + 1))) for replica in job.replicas],
            folder=Path(tempfile.mkdtemp(prefix="evenkeel-launch-")),
            delay_seconds=0.0,
            finish_grace_seconds=finish_grace_seconds,
            max_restarts=job.max_restarts,
            helper=self._help,
        )
        self._job = job
        self._by_token: dict[str, Unit] = {}
        self._to_helper, self._to_agent = Pipe()  # outcasts come, exits go
        self._access = ServiceSettings.from_environment(os.environ).fleet(job.job_id)
        if self._access.address and not self._access.job_token:
            _logger.warning("EVENKEEL_JOB_TOKEN is not set: the fleet API is not told how ranks end")
            self._access = replace(self._access, address="")

    def serve(self) -> int:
        """Returns 0 when every replica has finished, 1 when one was given up, 128 + n when signal n ended it."""
        if self._store is not None and self._job.stores:
            _logger.info("this host has the store at %s", self._store.address)
        try:
            number = self.run(self._to_helper, signal.SIGINT, signal.SIGTERM)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        if number:
            return 128 + number
        return int(any(any(each.statuses) for each in self._units))

    def _hear(self) -> None:
        """The others have gone on without a replica: if it is one of ours that does not end by itself soon, end it."""
        unit = self._by_token.get(self._to_helper.recv_bytes().decode())
        if unit is not None and unit.alive:
            unit.ends_at = time.monotonic() + _OUTCAST_GRACE_SECONDS

    def _bodies(self, unit: Unit) -> Callable[[int], Callable[[], int]]:
        token, replica = secrets.token_hex(8), unit.ranks[0] // self._job.replica_size
        self._by_token = {each: of for each, of in self._by_token.items() if of is not unit} | {token: unit}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = int(listener.getsockname()[1])
        if unit.incarnation:
            _logger.info("replica %d is started again, the %d. time", replica, unit.incarnation)

        def body(rank: int) -> Callable[[], int]:
            settings = self._job.settings(
                replica, rank - unit.ranks[0], unit.incarnation, token=token, stores=self.stores, port=port
            )
            return partial(run_script, self._job, settings, partial(self._failed, Child(rank, unit.incarnation)))

        return body

    def _tell(self, event: str, **facts: Any) -> None:
        match event:
            case "exited" if facts["rank"] == STORE:
                said = exit_words(facts["code"])
                _logger.warning("this host's store, process %d, ended (%s): it is started again", facts["pid"], said)
            case "exited" if facts["rank"] != HELPER:
                self._on_exited(**facts)
            case "unforked":
                who = {STORE: "the store", HELPER: "the helper"}.get(facts["rank"], f"rank {facts['rank']}")
                _logger.warning("%s gets no new process yet: %s", who, facts["why"])
            case "ending":
                self._to_helper.close()  # the helper ends once the fleet API has heard all

    def _on_exited(self, *, rank: int, incarnation: int, code: int, **_: Any) -> None:
        unit, replica = self._unit_of[rank], rank // self._job.replica_size
        words = take(self._folder, rank, incarnation)
        ends = self._ends_at < float("inf")
        ended_by_us = self._ended or (time.monotonic() > self._ends_at and not words.last_line)
        is_cause = code and sum(map(bool, unit.statuses)) == 1  # the others of a replica end by its end
        if is_cause and not ended_by_us:
            self._to_helper.send_bytes(as_exit(words, replica, incarnation, code=code).SerializeToString())
        if code and not self._ended:
            said = exit_words(code, words.last_line)
            if time.monotonic() > self._ends_at:
                said += f", {self.finish_grace_seconds:.0f} s after another replica had finished"
            _logger.warning("replica %d: rank %d.%d ended: %s", replica, rank, incarnation, said)
        if unit.is_over and not unit.alive and not unit.has_finished and not ends:
            _logger.error("replica %d is given up: it was started %d times", replica, 1 + incarnation)

    # ---- in a child

    def _help(self) -> int:
        """What takes threads: hear of outcasts in the job's log, and tell the fleet API how ranks have ended."""

        def heard(text: str) -> bool:
            entry = entry_from_text(text)
            if isinstance(entry, Gone) and not entry.standing:  # who goes in order leaves one
                with contextlib.suppress(OSError):  # the agent ends
                    self._to_agent.send_bytes(entry.token.encode())
            return True

        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends once all is said
        Ledger(Rendezvous(self.stores, self._job.job_id), LOG, heard)
        fleet = FleetSide(self._access)
        fleet.start()
        with contextlib.suppress(EOFError, OSError):  # an agent that ends may leave what it was told unread
            while True:
                fleet.failed(pb.RankExit.FromString(self._to_agent.recv_bytes()))
        fleet.stop(is_over=False)
        return 0

    def _let_go(self, child: Child) -> None:
        self._to_helper.close()
        if child.rank != HELPER:
            self._to_agent.close()
        super()._let_go(child)
