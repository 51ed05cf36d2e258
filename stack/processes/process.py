"""One process of the stack: own session, output to a log file, known to the watchdog."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from evenkeel.stack.errors import StackError, log_tail
from evenkeel.stack.processes.pids import send_to_group
from evenkeel.stack.processes.watchdog import Watchdog

POLL_SECONDS = 0.05


class ManagedProcess:
    """A child process, started and stopped by its owner. Any thread may wait; one at a time may start or stop.

    Args:
        name: For messages.
        command: Program and arguments.
        log_path: Gets the output of the process, appended.
        watchdog: Told of the process.
        environment: The whole environment; None = ours.
        stop_signal: Asks the process to end well.
        user_id: Runs as this user, when we may; None = as us.
    """

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        log_path: Path,
        watchdog: Watchdog,
        environment: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        user_id: int | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._command = list(command)
        self._environment = dict(os.environ if environment is None else environment)
        self._stop_signal = stop_signal
        self._user_id = user_id
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0

    @property
    def process_id(self) -> int | None:
        """Id of the process, also after its end; None before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process; a previous one must have ended.

        Raises:
            StackError: The program cannot be run.
        """
        assert not self.is_running, f"{self.name} runs already"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_begin = log.tell()
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    user=self._user_id,
                    group=self._user_id,
                    extra_groups=None if self._user_id is None else [],
                )
            except OSError as error:
                raise StackError(f"{self.name} cannot be started: {error}") from error
        self._watchdog.add(self._process.pid, self._stop_signal)

    def wait(self) -> int:
        """Blocks until the process ends; returns its exit status, negative for a signal."""
        assert self._process is not None, f"{self.name} was not started"
        status = self._process.wait()
        self._watchdog.remove(self._process.pid)
        return status

    def wait_until(self, ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Blocks until ``ready`` returns true.

        Raises:
            StackError: The process ended or the time is over; the message ends with the last lines since its start.
        """
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.is_running:
                status = self._process.returncode if self._process is not None else None
                raise StackError(f"{self.name} ended with status {status} at start; {self._log_tail()}")
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} was not ready in {timeout_seconds:.0f} s; {self._log_tail()}")
            time.sleep(POLL_SECONDS)

    def stop(self, *, grace_seconds: float) -> None:
        """Asks the process to end and kills its group after the grace; 0 kills at once. A second call does nothing."""
        if self._process is None:
            return
        if self._process.poll() is None and grace_seconds > 0:
            send_to_group(self._process.pid, self._stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=grace_seconds)
        # The group too: a process that died badly may have left children (postgres does).
        send_to_group(self._process.pid, signal.SIGKILL)
        self.wait()

    def _log_tail(self) -> str:
        return log_tail(self.log_path, begin=self._log_begin)
