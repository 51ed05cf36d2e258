"""What probes took, as ranks report it."""

from dataclasses import dataclass

Ends = tuple[int, int]
"""Two ranks, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What a probe took, seconds of the shortest repetition on suspect and peer."""

    rank: int
    incarnation: int
    peer_rank: int
    matrix_size: int
    seconds: float
    peer_seconds: float
    iteration: int

    @property
    def throughput(self) -> float:
        """The suspect's speed beside its peer's, 1.0 = the same."""
        return self.peer_seconds / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbeReport:
    """What a probe of links took, seconds of the shortest way there and back.

    Attributes:
        ends: Ranks of the suspected link, ascending.
        incarnations: Their processes.
        peer_ends: Ranks of the healthy one.
        num_bytes: Bytes of a transfer.
        seconds: Over the suspected link.
        peer_seconds: Over the healthy one, at the same time.
        iteration: Iteration at which the probe was asked for.
    """

    ends: Ends
    incarnations: Ends
    peer_ends: Ends
    num_bytes: int
    seconds: float
    peer_seconds: float
    iteration: int

    @property
    def ratio(self) -> float:
        """How many times as long it took over the suspected link."""
        return self.seconds / self.peer_seconds
