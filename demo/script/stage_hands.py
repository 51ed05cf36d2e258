"""The demo's hands on a real stack and a real job: the same functions that ``evenkeel inject`` calls."""

from evenkeel.stack.services import is_healthy
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.launcher import inject
from evenkeel.trainer_sdk.launcher.launcher import Launcher


class StageHands:
    """See :class:`evenkeel.demo.script.hands.Hands`.

    Args:
        stack: Runs the services; its supervisor brings a killed one back.
        launcher: Runs the job.
    """

    def __init__(self, stack: Stack, launcher: Launcher) -> None:
        self._stack = stack
        self._launcher = launcher
        self._killed: dict[str, int] = {}

    def slow(self, rank: int, speed: float) -> None:
        """See :class:`evenkeel.demo.script.hands.Hands`."""
        inject.slow(self._launcher.spec.run_dir, rank, speed)

    def kill(self, rank: int) -> None:
        """See :class:`evenkeel.demo.script.hands.Hands`."""
        inject.kill(self._launcher.spec.run_dir, rank)

    def replace(self, rank: int) -> None:
        """See :class:`evenkeel.demo.script.hands.Hands`."""
        self._launcher.restart(rank)

    def kill_service(self, name: str) -> None:
        """See :class:`evenkeel.demo.script.hands.Hands`."""
        self._killed[name] = self._stack.kill_service(name)

    def service_ready(self, name: str) -> bool:
        """See :class:`evenkeel.demo.script.hands.Hands`."""
        reborn = self._stack.service_process_ids.get(name) not in (None, self._killed.get(name))
        return reborn and is_healthy(self._stack.addresses.metrics_ports[name])

    def trouble(self) -> str:
        """See :class:`evenkeel.demo.script.hands.Hands`."""
        status = self._launcher.wait(timeout_seconds=0.0)
        return "" if status is None else f"the job ended with status {status}"
