"""A process's way from epoch to epoch. Pure."""

from evenkeel.trainer_sdk.replicas.membership.roster import Again, Epoch, Roster


class Passage:
    """Where a process is, and where it goes next.

    It enters an epoch, meets its members there, and trains, step by step. It leaves for a later one at the end of a
    step, when all members agree to; at once, when the newest change is an abrupt one; or because the epoch broke, and
    then for one that it asks for itself if nobody is found gone.

    Attributes:
        entered: Number of the epoch that it is in; 0 = none.
    """

    def __init__(self) -> None:
        self.entered = 0
        self._agreed = 0
        self._broken = ""

    @property
    def is_due(self) -> bool:
        """All members have agreed to go over to a newer epoch at the end of the step."""
        return self._agreed > self.entered

    @property
    def is_broken(self) -> bool:
        """The epoch does not work here: if it has no other end, :meth:`complaint` is to be said."""
        return bool(self._broken)

    def agree(self, newest: int) -> None:
        """A step's vote has passed, in which everybody knew of this epoch."""
        self._agreed = newest

    def fail(self, why: str) -> None:
        """Something in the epoch has failed; empty: it was just left."""
        self._broken = why

    def enter(self, number: int) -> None:
        """Try to train in an epoch."""
        self.entered = self._agreed = number
        self._broken = ""

    def complaint(self) -> Again:
        """What to tell the others of an epoch that broke. From here on the passage waits for what comes of it."""
        why, self._broken, self._agreed = self._broken, "", self.entered
        return Again(epoch=self.entered, why=why[:200])

    def next_epoch(self, roster: Roster, token: str) -> Epoch | None:
        """The epoch to go over to; the same wherever its peers have read on to.

        That of the newest abrupt change, as everybody hears of it sooner or later. Those after it are entered one by
        one, each at a border on which all members of the one before it agree; a newcomer waits in the first that it is
        part of.

        Args:
            roster: As far as the log was read here.
            token: The process.
        """
        abrupt, entered = roster.newest_abrupt, self.entered
        numbers = [abrupt] if abrupt > entered else []
        if (self.is_due or not entered) and roster.epoch is not None:
            numbers += range(max(abrupt, entered) + 1, roster.epoch.number + 1)
        epochs = (roster.epochs.get(number) for number in numbers)
        return next((each for each in epochs if each and any(token == one.token for one in each.members)), None)
