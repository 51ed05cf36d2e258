"""The protocol's words as plain values, and the port through which a rank is called."""

from dataclasses import dataclass
from typing import Protocol

from evenkeel.history.records import PlanRecord
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import Ballot, LinkProbe, RankState, StandIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a Commit carries besides the plan; fields as in ``evenkeel.control.v1.CommitRequest``."""

    from_epoch: int
    from_layout: Layout
    sources: tuple[int, ...]
    steps_applied: int
    stand_ins: tuple[StandIn, ...] = ()
    from_checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a rank is to time, of a device or of a link; fields as in ``evenkeel.control.v1.ProbeRequest``."""

    repetitions: int
    matrix_size: int = 0
    link: LinkProbe | None = None


class RankAwayError(Exception):
    """A rank's controller does not answer, or not in time."""


class RankTimeoutError(RankAwayError):
    """A rank's controller was asked, and had no answer by the deadline."""


class RankGoneError(RankAwayError):
    """Nobody talks to this process any more: it is known to be gone."""


class RankRefusedError(Exception):
    """A rank's controller refuses: the plan is stale there, the token is wrong, or it cannot be reshaped."""


class StaleBallotError(RankRefusedError):
    """A rank is promised to a greater ballot: whoever proposes again goes beyond it.

    Attributes:
        promised: That ballot.
    """

    def __init__(self, promised: Ballot, text: str) -> None:
        super().__init__(text)
        self.promised = promised


class RankCalls(Protocol):
    """Calls to one process of a rank. Every call has a deadline.

    Errors of all methods: :class:`RankAwayError`, :class:`RankRefusedError`.
    """

    async def prepare(self, plan: PlanRecord, timeout_seconds: float) -> RankState:
        """Phase one; in mode RECOVER the answer comes once the rank is parked."""
        ...

    async def commit(self, plan: PlanRecord, decision: Decision, timeout_seconds: float) -> RankState:
        """Phase two. The same commit twice is one commit."""
        ...

    async def abort(self, plan: PlanRecord, timeout_seconds: float) -> RankState:
        """Forget a prepared plan."""
        ...

    async def interrupt(self, epoch: int, *, leave: bool, timeout_seconds: float) -> None:
        """Stop waiting and park, or leave for good."""
        ...

    async def probe(self, probe: Probe, timeout_seconds: float) -> list[float]:
        """Seconds of each matrix product, run at the rank's next iteration border, or of each way there and back."""
        ...

    async def status(self, timeout_seconds: float) -> RankState:
        """The state now."""
        ...
