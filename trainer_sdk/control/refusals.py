"""What a rank answers when it does not take part in a plan."""

from evenkeel.layouts.rank_state import Ballot


class StaleBallotError(Exception):
    """This rank is promised to a greater ballot, or to another plan of the same one.

    Attributes:
        promised: Propose beyond it.
    """

    def __init__(self, promised: Ballot, message: str) -> None:
        super().__init__(message)
        self.promised = promised


class FinishedError(Exception):
    """This rank has finished: no plan can include it."""
