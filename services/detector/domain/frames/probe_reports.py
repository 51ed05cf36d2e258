"""What a probe took, as ranks report it: of one rank's device, or of the link between two ranks."""

from dataclasses import dataclass

Ranks = tuple[int, ...]
"""One for its device, two, ascending, for the link between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What a probe took, seconds of the shortest repetition.

    Attributes:
        ranks: The suspected device or link.
        incarnations: Its processes.
        peers: The device or link beside it.
        size: Side of the matrices that were multiplied, or bytes of a transfer there and back.
        seconds: On the suspect.
        peer_seconds: Beside it, at the same time.
        iteration: Iteration at which the probe was asked for.
    """

    ranks: Ranks
    incarnations: Ranks
    peers: Ranks
    size: int
    seconds: float
    peer_seconds: float
    iteration: int

    @property
    def ratio(self) -> float:
        """How many times as long the suspect took."""
        return self.seconds / self.peer_seconds

    def turned(self, incarnations: Ranks) -> "ProbeReport":
        """The same probe, told of what was beside the suspect, whose processes these are."""
        return ProbeReport(
            ranks=self.peers,
            incarnations=incarnations,
            peers=self.ranks,
            size=self.size,
            seconds=self.peer_seconds,
            peer_seconds=self.seconds,
            iteration=self.iteration,
        )
