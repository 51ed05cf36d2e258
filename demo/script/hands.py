"""What the demo may do: the only ways in which it touches the job and the services. It repairs nothing."""

from typing import Protocol


class Hands(Protocol):
    """Injection, as a person with root could do it."""

    def slow(self, rank: int, speed: float) -> None:
        """Set the speed of a rank's device relative to healthy."""
        ...

    def kill(self, rank: int) -> None:
        """``kill -9`` the rank's process."""
        ...

    def replace(self, rank: int) -> None:
        """Start a new process for a dead rank."""
        ...

    def kill_service(self, name: str) -> None:
        """``kill -9`` a service; its supervisor starts it again."""
        ...

    def service_ready(self, name: str) -> bool:
        """True when the service answers that it is ready. May block for some milliseconds."""
        ...

    def trouble(self) -> str:
        """Why the run cannot go on, for example that the job ended; empty while it can."""
        ...
