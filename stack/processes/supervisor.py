"""Runs the services: starts them, has each kept running, stops all of them in order."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from evenkeel.stack.processes.keeper import Keeper
from evenkeel.stack.processes.process import ManagedProcess
from evenkeel.stack.processes.watchdog import Watchdog
from evenkeel.stack.services import ServiceProcess, is_healthy

READY_TIMEOUT_SECONDS = 300.0
STOP_GRACE_SECONDS = 8.0


class Supervisor:
    """Runs services; one that dies is started again.

    Args:
        services: What to run, in order of start; the order of stop is the other way round.
        log_folder: Gets ``<name>.log`` each.
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
        self._keepers = {
            service.name: Keeper(
                ManagedProcess(
                    name=service.name,
                    command=service.command,
                    environment={**os.environ, **service.environment},
                    log_path=log_folder / f"{service.name}.log",
                    watchdog=watchdog,
                ),
                on_restart=on_change,
            )
            for service in self._services
        }

    @property
    def process_ids(self) -> dict[str, int]:
        """Id of each service's newest process."""
        found = {name: keeper.process.process_id for name, keeper in self._keepers.items()}
        return {name: process_id for name, process_id in found.items() if process_id is not None}

    @property
    def restarts(self) -> dict[str, int]:
        """How often each service was started again."""
        return {name: keeper.num_restarts for name, keeper in self._keepers.items()}

    def start(self) -> None:
        """Starts all services and returns when all of them say that they are ready.

        Raises:
            StackError: One ended or was not ready in time; :meth:`stop` is still to be called.
        """
        for keeper in self._keepers.values():
            keeper.process.start()
        for service in self._services:
            self._keepers[service.name].process.wait_until(
                functools.partial(is_healthy, service.metrics_port), timeout_seconds=READY_TIMEOUT_SECONDS
            )
        for keeper in self._keepers.values():
            keeper.start()

    def stop(self, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Stops all services, the last first; a second call does nothing."""
        for keeper in self._keepers.values():
            keeper.let_go()
        for keeper in reversed(self._keepers.values()):
            keeper.stop(grace_seconds=grace_seconds)
