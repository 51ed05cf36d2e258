"""Why a job cannot go on: what a person reads, and what would free it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class StuckReason(StrEnum):
    """Why; the same words as in ``protos/``."""

    NO_LAYOUT = "no_layout"
    """Nothing can be made of those that are left."""

    NOTHING_HELD = "nothing_held"
    """A part of the model is held by nobody alive, kept by no peer and on no disk that is seen."""

    NOT_STARTED = "not_started"
    """None of its processes has ever registered."""

    UNHEARD = "unheard"
    """None of its processes answers, none has been heard of for long, and nobody has said that they are gone."""


_FREES_BY = {
    StuckReason.NO_LAYOUT: "start its ranks again, or others in their places",
    StuckReason.NOTHING_HELD: "bring back a rank that holds it, or a folder with a checkpoint that the ranks see",
    StuckReason.NOT_STARTED: "start its processes; each must reach the fleet API with the job's token",
    StuckReason.UNHEARD: "start its ranks again, or mend the way to them; if it is over, `evenkeel jobs finish` it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A job that cannot go on.

    Attributes:
        reason: Why.
        detail: The same with figures and names, for a person.
        since: Since when.
    """

    reason: StuckReason
    detail: str
    since: datetime

    @property
    def frees_by(self) -> str:
        """What would free it, for a person."""
        return _FREES_BY[self.reason]
