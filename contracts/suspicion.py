"""What the detector asks the scheduler: a probe of a device or a link that it suspects, beside a healthy one's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectedLink:
    """The higher ranks of a suspected link and of a healthy one, with their processes, and what to send over both."""

    partner_rank: int
    partner_incarnation: int
    peer_partner_rank: int
    peer_partner_incarnation: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The question; fields as in ``evenkeel.detector.v1.Suspicion``.

    Attributes:
        job_id: Job.
        rank: The suspect; of a link, its lower rank.
        incarnation: Its process.
        peer_rank: A rank that did the same work and looks healthy; the lower rank of a link of the same kind.
        peer_incarnation: Its process.
        iteration: Iteration at which the suspicion arose.
        at_unix_seconds: When, on the clock of the data.
        matrix_size: Side of the square matrices to multiply; 0 where links are to be probed.
        link: Their other ends; None where devices are to be probed.
    """

    job_id: str
    rank: int
    incarnation: int
    peer_rank: int
    peer_incarnation: int
    iteration: int
    at_unix_seconds: float
    matrix_size: int = 0
    link: SuspectedLink | None = None

    @property
    def processes(self) -> tuple[tuple[int, int], ...]:
        """Everybody to ask, as (rank, incarnation)."""
        devices = ((self.rank, self.incarnation), (self.peer_rank, self.peer_incarnation))
        if self.link is None:
            return devices
        partner = self.link.partner_rank, self.link.partner_incarnation
        peer_partner = self.link.peer_partner_rank, self.link.peer_partner_incarnation
        return (*devices, partner, peer_partner)
