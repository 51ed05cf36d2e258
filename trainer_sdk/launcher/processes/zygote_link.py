"""The supervisor's end of the connection to the zygote: commands out, events in."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Pipe
from typing import Any

from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec


class ZygoteLink:
    """Starts a zygote and talks to it. Commands may come from any thread; one thread reads :meth:`events`.

    Args:
        spec: The job.
        incarnations: Of each rank's first process, which it forks as soon as it can.
    """

    def __init__(self, spec: JobSpec, incarnations: Mapping[int, int]) -> None:
        self._connection, theirs = Pipe()
        environment = {
            **os.environ,
            "GRPC_ENABLE_FORK_SUPPORT": "0",
            "OMP_NUM_THREADS": str(spec.num_threads),
            "MKL_NUM_THREADS": str(spec.num_threads),
            # Its warnings are stack traces, one for each connection that ends: ranks tell of that themselves.
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evenkeel.trainer_sdk.launcher.processes.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the supervisor only, which ends the rest in order
        )
        theirs.close()
        self._sending = threading.Lock()
        self._send(spec)
        self._send(dict(incarnations))

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    def restart(self, rank: int) -> None:
        """Give a rank a new process now, in place of the one that it may have."""
        self._send(rank)

    def end(self) -> None:
        """Ask for an orderly end; :meth:`events` runs dry once every process is gone."""
        self._send(None)

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the zygote tells, see :meth:`Host._tell`, until it is gone."""
        # TypeError: it was hung up in the middle of a message.
        with suppress(EOFError, OSError, TypeError):
            while True:
                yield self._connection.recv()

    def exit_code(self, timeout_seconds: float) -> int | None:
        """How it ended, minus the signal that killed it; None when it has not after so long."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self, timeout_seconds: float) -> None:
        """Hang up, which ends the zygote and its children, and wait for it."""
        self._connection.close()
        if self.exit_code(timeout_seconds) is None:
            self._process.kill()
            self._process.wait()

    def _send(self, said: object) -> None:
        with self._sending, suppress(OSError):  # where it is gone events() ends, and that is where it is handled
            self._connection.send(said)
