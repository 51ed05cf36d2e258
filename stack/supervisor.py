"""Keeps processes running: starts them, starts one again at once when it dies, stops all of them in order."""

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stack.process import ManagedProcess
from stack.services import ServiceProcess, is_healthy
from stack.watchdog import Watchdog

READY_TIMEOUT_SECONDS = 120.0
STOP_GRACE_SECONDS = 8.0
# A process that lived this long died of something new: it is started again at once. Else the wait doubles.
SETTLED_SECONDS = 10.0
FIRST_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 5.0


class Supervisor:
    """Runs services, each watched by a thread of its own that blocks in ``waitpid``: a death is noticed at once.

    Args:
        services: What to run, in order of start; the order of stop is the other way round.
        log_folder: Gets ``<service>.log`` each.
        watchdog: Told of each process.
        on_change: Called from a watching thread after each restart.
    """

    def __init__(
        self,
        services: Sequence[ServiceProcess],
        *,
        log_folder: Path,
        watchdog: Watchdog,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._services = tuple(services)
        self._on_change = on_change
        self._processes = {
            service.name: ManagedProcess(
                name=service.name,
                command=service.command,
                environment={**os.environ, **service.environment},
                log_path=log_folder / f"{service.name}.log",
                watchdog=watchdog,
            )
            for service in self._services
        }
        self._restarts = dict.fromkeys(self._processes, 0)
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        # Held while a process is started, so that none is started after the decision to stop.
        self._start_lock = threading.Lock()

    @property
    def process_ids(self) -> dict[str, int]:
        """Id of each service's newest process."""
        return {name: each.process_id for name, each in self._processes.items() if each.process_id is not None}

    @property
    def restarts(self) -> dict[str, int]:
        """How often each service was started again."""
        return dict(self._restarts)

    def start(self) -> None:
        """Starts all services and returns when all of them say that they are ready.

        Raises:
            StackError: One ended or was not ready in time; :meth:`stop` is still to be called.
        """
        for service in self._services:
            self._processes[service.name].start()
        for service in self._services:
            self._processes[service.name].wait_until(
                functools.partial(is_healthy, service.metrics_port), timeout_seconds=READY_TIMEOUT_SECONDS
            )
        for service in self._services:
            thread = threading.Thread(
                target=self._keep_running, args=(service.name,), name=f"watch-{service.name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Stops all services, the last first; a second call does nothing."""
        with self._start_lock:
            self._stopping.set()
        for service in reversed(self._services):
            self._processes[service.name].stop(grace_seconds=grace_seconds)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _keep_running(self, name: str) -> None:
        process = self._processes[name]
        delay_seconds = FIRST_DELAY_SECONDS
        while True:
            started = time.monotonic()
            process.wait()
            settled = time.monotonic() - started > SETTLED_SECONDS
            delay_seconds = FIRST_DELAY_SECONDS if settled else min(delay_seconds * 2, MAX_DELAY_SECONDS)
            if self._stopping.wait(0.0 if settled else delay_seconds):
                return
            with self._start_lock:
                if self._stopping.is_set():
                    return
                process.start()
                self._restarts[name] += 1
            self._on_change()
