"""Who decides which epoch a rank is in: what the training loop asks."""

from evenkeel.trainer_sdk.replicas.membership.passage import Passage
from evenkeel.trainer_sdk.replicas.membership.roster import Again, Epoch, Member, Quotas

EXIT_EVICTED = 75


class Evicted(SystemExit):
    """The others go on without this replica: what it would do now counts nowhere."""


class JobFinished(SystemExit):
    """The others came to the end of their loops without this replica: nothing is left to do."""


class Director:
    """Tells a rank which epoch to be in. Training thread, except :meth:`interrupted`.

    This one is that of a replica without others, whose only epoch lasts.
    """

    _ONLY = Epoch(number=1, members=(Member(replica=0, token="", founds=True),))

    @property
    def newest(self) -> Epoch | None:
        """The newest epoch that was decided, whether or not this replica is in it."""
        return self._ONLY

    def interrupted(self) -> bool:
        """Whether to leave the epoch that was entered at once. Any thread; well under a microsecond.

        Raises:
            Evicted: The others go on without this replica.
        """
        return False

    def join(self, lines: tuple[str, ...]) -> None:
        """Say that this replica is ready; one of its ranks does it for all."""

    def wait(self, passage: Passage, timeout_seconds: float | None = None) -> Epoch | None:
        """The epoch to go on in, see :meth:`Passage.next_epoch`, once there is one; None after the timeout.

        Raises:
            Evicted: The others go on without this replica.
            JobFinished: They have finished, and not enough are there to begin anew.
        """
        return self._ONLY

    def epoch(self, number: int) -> Epoch:
        """An epoch that a mate has heard of, once it is heard of here.

        Raises:
            Evicted: The others go on without this replica.
        """
        return self._ONLY

    def entered(self, epoch: Epoch) -> None:
        """This rank trains in that epoch from now on, or tries to."""

    def failed(self, complaint: Again) -> None:
        """An epoch does not work here; returns at once."""
        raise RuntimeError(f"a replica alone has lost somebody: {complaint.why}")

    def silent(self, members: tuple[Member, ...], why: str) -> None:
        """These take part in nothing, for too long; returns at once."""

    def share_out(self, quotas: Quotas) -> None:
        """From the end of a step on, work is shared out like this; returns at once."""

    def ends(self) -> None:
        """From now on the end of a mate is in order."""

    def leave(self, standing: str, *, finished: bool) -> None:
        """This replica goes away in order; blocks for some seconds at most.

        Args:
            standing: How far this replica is.
            finished: Its loop has come to its end.
        """
