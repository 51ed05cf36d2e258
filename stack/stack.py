"""Everything that Evenkeel needs on one machine, started and stopped as one thing.

Blocking, for commands and tests: no event loop. The object belongs to one thread; the processes end with the process
that called :meth:`Stack.start`, in whatever way that ends.
"""

import logging
import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from evenkeel.contracts.kafka_security import kafka_security
from evenkeel.contracts.topics import DEFAULT_NUM_PARTITIONS
from evenkeel.stack.addresses import Addresses, wrong_address
from evenkeel.stack.errors import ServerAwayError, StackError
from evenkeel.stack.kafka.node import Kafka
from evenkeel.stack.kafka.topics import apply_topics
from evenkeel.stack.paths import stack_folder
from evenkeel.stack.postgres.databases import upgrade_database
from evenkeel.stack.postgres.server import Postgres
from evenkeel.stack.processes.keeper import Keeper
from evenkeel.stack.processes.locks import try_lock
from evenkeel.stack.processes.pids import is_alive
from evenkeel.stack.processes.ports import LOOPBACK, free_ports, start_on_free_ports
from evenkeel.stack.processes.process import POLL_SECONDS
from evenkeel.stack.processes.supervisor import Supervisor
from evenkeel.stack.processes.watchdog import Watchdog
from evenkeel.stack.services import SERVICE_NAMES, process_names, service_process
from evenkeel.stack.state import Phase, StackState, lock_path, process_state, read_state, remove_state, write_state

# Whoever looks at the state takes the lock for a moment.
LOCK_TIMEOUT_SECONDS = 1.0
NUM_PARTITIONS = 8
"""Of each topic, in a Kafka of the stack's own: every reader pays for every partition with each of its fetches."""

_logger = logging.getLogger("evenkeel.stack")


class Stack:
    """A local stack.

    Where EVENKEEL_KAFKA_BOOTSTRAP_SERVERS or EVENKEEL_DATABASE_URL is set, that server is used and none is started.

    Args:
        name: Folder below ``.stack``; one living stack per name and checkout.
        services: Which services to run; none = only Kafka and PostgreSQL.
        num_instances: Processes of each service: the second takes over when the first dies. 0 = none at all.
        keep_data: Data stays for the next start; else it is thrown away at start and at stop (logs stay).
    """

    def __init__(
        self,
        name: str = "dev",
        *,
        services: Sequence[str] = SERVICE_NAMES,
        num_instances: int = 1,
        keep_data: bool = True,
    ) -> None:
        self.name = name
        self.folder: Path = stack_folder(name)
        self._services = tuple(services)
        self._process_names = process_names(services, num_instances)
        self._num_instances = num_instances
        self._keep_data = keep_data
        self._addresses = Addresses()
        self._lock: IO[str] | None = None
        self._watchdog = Watchdog()
        self._kafka: Kafka | None = None
        self._security: dict[str, Any] = {}
        self._postgres: Postgres | None = None
        self._keepers: dict[str, Keeper] = {}
        self._supervisor: Supervisor | None = None
        self._phase = Phase.STARTING
        self._doing = ""
        # Keepers write the state too: what was seen later must not be replaced by what was seen before.
        self._state_lock = threading.Lock()

    @property
    def addresses(self) -> Addresses:
        """Where the parts are; complete after :meth:`start`."""
        return self._addresses

    @property
    def log_folder(self) -> Path:
        """Where the services log to, ``<process>.log`` each."""
        return self.folder / "logs"

    @property
    def service_process_ids(self) -> dict[str, int]:
        """Id of the newest process of each, by :func:`evenkeel.stack.services.process_names`."""
        return {} if self._supervisor is None else self._supervisor.process_ids

    @property
    def service_restarts(self) -> dict[str, int]:
        """How often each of them was started again."""
        return {} if self._supervisor is None else self._supervisor.restarts

    @property
    def server_process_ids(self) -> dict[str, int]:
        """Id of the newest process of ``kafka`` and ``postgres``; without those that ran before the stack."""
        servers = {"kafka": self._kafka, "postgres": self._postgres}
        processes = {name: each.process for name, each in servers.items() if each is not None}
        return {name: one.process_id for name, one in processes.items() if one and one.process_id is not None}

    def start(self) -> Self:
        """Starts everything and returns when it is ready: migrated, topics made, services healthy.

        Raises:
            StackError: A part is missing or did not start (then nothing is left running), or the stack runs already.
        """
        self._lock = try_lock(lock_path(self.name), timeout_seconds=LOCK_TIMEOUT_SECONDS)
        if self._lock is None:
            state = read_state(self.name)
            owner = f" (process {state.owner_id})" if state else ""
            raise StackError(
                f"the stack {self.name!r} runs already{owner}; stop it with: evenkeel stack down --name {self.name}"
            )
        try:
            self._phase = Phase.STARTING
            try:
                self._write_state_now()
            except OSError as error:
                raise StackError(f"the state of the stack cannot be written to {self.folder}: {error}") from error
            if not self._keep_data:
                self._remove_data()
            self._watchdog.start()
            self._say("starting Kafka and PostgreSQL")
            self._start_servers()
            self._say("making the history's tables and the topics")
            self._prepare_servers()
            if self._process_names:
                self._say(f"starting {', '.join(self._services)}")
                start_on_free_ports(self._start_services_once, self._stop_services)
            self._enter(Phase.RUNNING)
        except BaseException as error:
            self._shut_down(failure=str(error) if isinstance(error, StackError) else "")
            raise
        return self

    def stop(self) -> None:
        """Stops everything, services first, and returns when nothing is left. A second call does nothing."""
        self._shut_down()

    def tell(self) -> None:
        """Tells other shells how it stands; a disk that is full holds up neither a restart nor the end. Thread-safe."""
        try:
            self._write_state_now()
        except (OSError, subprocess.SubprocessError) as error:
            _logger.warning("the state of the stack %s cannot be written: %s", self.name, error)

    def kill_service(self, name: str) -> int:
        """``kill -9`` on a service's process, ``kafka`` or ``postgres``, as a fault to survive: it is started again.

        Returns:
            Id of the killed process.

        Raises:
            StackError: No such service runs now.
        """
        process_id = {**self.server_process_ids, **self.service_process_ids}.get(name)
        if process_id is None or not is_alive(process_id):
            parts = (*self.server_process_ids, *self._process_names)
            raise StackError(f"service {name!r} does not run; this stack has {', '.join(parts) or 'none'}")
        os.kill(process_id, signal.SIGKILL)
        return process_id

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _shut_down(self, *, failure: str = "") -> None:
        if self._lock is None:
            return
        self._enter(Phase.STOPPING)
        self._stop_services()
        # Data that nobody wants again needs no orderly end.
        graceful = {} if self._keep_data else {"grace_seconds": 0.0}
        for keeper in self._keepers.values():
            keeper.let_go()
        if self._kafka is not None:
            self._kafka.stop(**graceful)
        if self._postgres is not None:
            self._postgres.stop(**graceful)
        for keeper in self._keepers.values():
            keeper.stop(grace_seconds=0.0)
        self._watchdog.stop()
        if not self._keep_data:
            self._remove_data()
        if failure:
            failed = StackState(name=self.name, phase=Phase.FAILED, owner_id=os.getpid(), error=failure)
            with suppress(OSError):  # whoever started it is told by the exception too
                write_state(failed)
        else:
            remove_state(self.name)
        self._lock.close()
        self._lock = None

    def _start_servers(self) -> None:
        kafka_address, database_url = (
            _address_in_environment(f"EVENKEEL_{name}") for name in ("KAFKA_BOOTSTRAP_SERVERS", "DATABASE_URL")
        )
        self._security = _security_in_environment(is_given=bool(kafka_address))
        if not kafka_address:
            self._kafka = Kafka(self.folder / "kafka", self._watchdog, self._say)
        if not database_url:
            self._postgres = Postgres(self.folder / "postgres", self._watchdog)
        servers = [each for each in (self._kafka, self._postgres) if each is not None]
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="start") as pool:
            starts = []
            try:
                starts += [pool.submit(each.start) for each in servers]
                wait(starts)
            except BaseException:
                # A signal: a server that came up behind our back would outlive us.
                while wait(starts, timeout=POLL_SECONDS).not_done:
                    for starting in servers:
                        starting.stop(grace_seconds=0.0)
                raise
        for start in starts:
            start.result()
        self._addresses = Addresses(
            kafka_bootstrap_servers=kafka_address if self._kafka is None else self._kafka.bootstrap_servers,
            database_url=database_url if self._postgres is None else self._postgres.database_url,
        )
        for name, server in (("kafka", self._kafka), ("postgres", self._postgres)):
            if server is not None and server.process is not None:
                self._keepers[name] = Keeper(server.process, on_restart=self.tell)
                self._keepers[name].start()

    def _prepare_servers(self) -> None:
        given = {"EVENKEEL_DATABASE_URL": self._postgres, "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": self._kafka}
        names = " and ".join(name for name, own in given.items() if own is None)
        try:
            upgrade_database(self._addresses.database_url)
            apply_topics(
                self._addresses.kafka_bootstrap_servers,
                security=self._security,
                num_partitions=DEFAULT_NUM_PARTITIONS if self._kafka is None else NUM_PARTITIONS,
            )
        except ServerAwayError as error:
            if not names:
                raise
            raise ServerAwayError(
                f"{error}; set here are {names}; unset what is no longer true: the stack then runs its own"
            ) from error

    def _stop_services(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stop()

    def _start_services_once(self) -> None:
        ports = free_ports(self._num_instances + len(self._process_names))
        fleet_ports, metrics_ports = ports[: self._num_instances], ports[self._num_instances :]
        self._addresses = replace(
            self._addresses,
            fleet_address=",".join(f"{LOOPBACK}:{port}" for port in fleet_ports),
            fleet_token=os.environ.get("EVENKEEL_FLEET_TOKEN") or secrets.token_urlsafe(24),
            metrics_ports=dict(zip(self._process_names, metrics_ports, strict=True)),
        )
        self._supervisor = Supervisor(
            [service_process(name, self._addresses) for name in self._process_names],
            log_folder=self.log_folder,
            watchdog=self._watchdog,
            on_change=self.tell,
        )
        self._supervisor.start()

    def _say(self, doing: str) -> None:
        """What whoever waits for the stack is shown."""
        self._doing = doing
        self.tell()

    def _enter(self, phase: Phase) -> None:
        self._phase, self._doing = phase, ""
        self.tell()

    def _write_state_now(self) -> None:
        with self._state_lock:
            processes = {}
            for name, process_id in self.server_process_ids.items():
                keeper = self._keepers.get(name)
                processes[name] = process_state(process_id, restarts=0 if keeper is None else keeper.num_restarts)
            for name, process_id in self.service_process_ids.items():
                processes[name] = process_state(process_id, restarts=self.service_restarts[name])
            state = StackState(
                name=self.name,
                phase=self._phase,
                owner_id=os.getpid(),
                addresses=self._addresses,
                processes=processes,
                doing=self._doing,
            )
            write_state(state)

    def _remove_data(self) -> None:
        for part in ("kafka", "postgres"):
            shutil.rmtree(self.folder / part, ignore_errors=True)


def _security_in_environment(*, is_given: bool) -> dict[str, Any]:
    """How Kafka is spoken to, by the services too; one that is not given is the stack's own, which is plain."""
    try:
        security = kafka_security(os.environ)
    except ValueError as error:
        raise StackError(str(error)) from error
    if not is_given and (protocol := security["security_protocol"]) != "PLAINTEXT":
        raise StackError(
            f"EVENKEEL_KAFKA_SECURITY_PROTOCOL is {protocol}, and a stack's own Kafka speaks PLAINTEXT: unset it, or "
            "say where yours is in EVENKEEL_KAFKA_BOOTSTRAP_SERVERS"
        )
    return security


def _address_in_environment(name: str) -> str:
    """Where a server runs that is to be used, or nothing."""
    value = os.environ.get(name, "")
    if value and (problem := wrong_address(name, value)):
        raise StackError(problem)
    return value
