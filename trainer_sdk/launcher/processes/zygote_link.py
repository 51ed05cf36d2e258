"""The supervisor's end of the socket to the zygote: commands out, events in."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec


class ZygoteLink:
    """Starts a zygote and talks to it. Commands may come from any thread; one thread reads :meth:`events`.

    Args:
        spec: The job.
        incarnations: Of each rank's first process, which it forks as soon as it can.
    """

    def __init__(self, spec: JobSpec, incarnations: Mapping[int, int]) -> None:
        ours, theirs = socket.socketpair()
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
        self._socket = ours
        self._sending = threading.Lock()
        self._send({"spec": spec.to_json(), "ranks": incarnations})

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    def restart(self, rank: int) -> None:
        """Give a rank a new process now, in place of the one that it may have."""
        self._send({"do": "restart", "rank": rank})

    def kill(self, rank: int) -> None:
        """Kill a rank's process, if it has one."""
        self._send({"do": "kill", "rank": rank})

    def end(self) -> None:
        """Ask for an orderly end; :meth:`events` runs dry once every process is gone."""
        self._send({"do": "end"})

    def events(self) -> Iterator[dict[str, Any]]:
        """Events as they come, until the zygote is gone."""
        unread = b""
        while received := self._receive():
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def exit_code(self, timeout_seconds: float) -> int | None:
        """How it ended, minus the signal that killed it; None when it has not after so long."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self, timeout_seconds: float) -> int:
        """Hang up, which ends the zygote and its children, and wait for it; returns its exit status."""
        self._socket.close()
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    def _send(self, command: dict[str, Any]) -> None:
        with self._sending:
            try:
                self._socket.sendall(json.dumps(command).encode() + b"\n")
            except OSError:
                return  # it is gone: events() ends, and that is where it is handled
