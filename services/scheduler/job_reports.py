"""Where the scheduler tells what it sees itself of one job's processes."""

from typing import Protocol

from evenkeel.services.scheduler.domain.suspicion import ProbeOutcome


class JobReports(Protocol):
    """Where that goes which the scheduler itself sees of one job's processes."""

    async def stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
        """A process's stream broke and its controller does not answer any more."""
        ...

    async def probed(self, outcome: ProbeOutcome) -> None:
        """A suspect was probed beside a peer."""
        ...
