"""Keeps one process running: starts it again when it ends, at once where that is something new."""

import logging
import threading
import time
from collections.abc import Callable

from evenkeel.stack.errors import StackError
from evenkeel.stack.processes.process import ManagedProcess

# A process that lived this long died of something new: it is started again at once. Else the wait doubles.
SETTLED_SECONDS = 10.0
FIRST_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 5.0

_logger = logging.getLogger("evenkeel.stack")


class Keeper:
    """Watches a started process by a thread of its own that blocks in ``waitpid``: a death is noticed at once.

    Args:
        process: Started already by whoever keeps it; from now on only the keeper starts and stops it.
        on_restart: Called from the watching thread after each restart.
    """

    def __init__(self, process: ManagedProcess, *, on_restart: Callable[[], None] = lambda: None) -> None:
        self.process = process
        self.num_restarts = 0
        self._on_restart = on_restart
        self._stopping = threading.Event()
        # Held while the process is started, so that none is started after the decision to stop.
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to watch; returns at once."""
        self._thread = threading.Thread(target=self._keep_running, name=f"keep-{self.process.name}", daemon=True)
        self._thread.start()

    def let_go(self) -> None:
        """From now on nothing is started again; the process itself is left alone."""
        with self._start_lock:
            self._stopping.set()

    def stop(self, *, grace_seconds: float) -> None:
        """Stops the process for good; a second call does nothing."""
        self.let_go()
        self.process.stop(grace_seconds=grace_seconds)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _keep_running(self) -> None:
        delay_seconds = FIRST_DELAY_SECONDS
        while True:
            started = time.monotonic()
            self.process.wait()
            settled = time.monotonic() - started > SETTLED_SECONDS
            delay_seconds = FIRST_DELAY_SECONDS if settled else min(delay_seconds * 2, MAX_DELAY_SECONDS)
            if self._stopping.wait(0.0 if settled else delay_seconds):
                return
            with self._start_lock:
                if self._stopping.is_set():
                    return
                # Counted first: whoever sees the new process sees that it was started again.
                self.num_restarts += 1
                self._start()
            self._on_restart()

    def _start(self) -> None:
        try:
            self.process.start()
        except (StackError, OSError) as error:
            # No memory for one more process, say: the wait doubles as after one that died at once.
            _logger.warning("%s cannot be started again, trying on: %s", self.process.name, error)
