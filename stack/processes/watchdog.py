"""Ends the stack's processes when their owner is gone, however it went: a crash and ``kill -9`` included.

One small process at the other end of a pipe: the pipe closes with its owner. This works the same on Linux and macOS,
unlike a parent-death signal, which also goes off when only the thread that started the child ends.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress


class Watchdog:
    """Owner's side of the pipe. Thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the process; does nothing when it runs already."""
        with self._lock:
            if self._process is not None:
                return
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evenkeel.stack.processes._watch", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )

    def add(self, process_id: int, stop_signal: int) -> None:
        """From now on the process group led by ``process_id`` dies with us; it is asked with ``stop_signal`` first."""
        self._send(f"add {process_id} {int(stop_signal)}\n")

    def remove(self, process_id: int) -> None:
        """Forgets a process that has ended."""
        self._send(f"remove {process_id}\n")

    def stop(self) -> None:
        """Ends the watchdog; processes still known to it are ended by it. A second call does nothing."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()

    def _send(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                return
            assert self._process.stdin is not None
            # Somebody may have killed the watchdog; the stack itself goes on without it.
            with suppress(BrokenPipeError):
                self._process.stdin.write(line.encode())
