"""Lets calls in only while this scheduler is in charge, and tells others where the one that is can be found."""

from evenkeel.services.scheduler.adapters.api.errors import NotInChargeError


class Gate:
    """Belongs to the event loop's thread.

    Attributes:
        opened: Whether calls are let in.
        leader: ``host:port`` of the fleet API of whoever is in charge; empty = not known.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self.opened = opened
        self.leader = ""

    def stand_by(self, leader: str) -> None:
        """Somebody else is in charge."""
        self.opened, self.leader = False, leader

    def open(self) -> None:
        """From now on calls are let in."""
        self.opened, self.leader = True, ""

    def check(self) -> None:
        """Returns when a call is let in.

        Raises:
            NotInChargeError: It is not.
        """
        if self.opened:
            return
        if self.leader:
            raise NotInChargeError(f"this scheduler stands by; the one in charge is at {self.leader}")
        raise NotInChargeError("no scheduler is in charge yet; try again")
