"""Finds replicas that hang: processes that live, and do not come to where all others wait for them.

A hung process ends no connection, so only time tells. Whoever has waited for long says so in the store; when somebody
has not said it a while later, it is not waiting, and counts as gone.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.replicas.membership.director import Director
from evenkeel.trainer_sdk.replicas.membership.roster import Epoch, Gone
from evenkeel.trainer_sdk.replicas.place import Place

_LEAST_GRACE_SECONDS = 0.5


class Patience:
    """How long a rank waits for others before it has them counted out.

    Args:
        rendezvous: Connection to the store.
        director: Is told who is silent.
        place: This rank.
    """

    def __init__(self, rendezvous: Rendezvous, director: Director, place: Place) -> None:
        self._rendezvous = rendezvous.another()
        self._director = director
        self._seconds = place.hang_seconds
        self._replica = place.replica
        self._index = place.index
        self._since: float | None = None
        self._what: tuple[Epoch, str] | None = None
        self._is_looking = False

    @contextmanager
    def waiting(self, epoch: Epoch, what: str) -> Iterator[None]:
        """Around a wait of this rank for all members of an epoch; ``what`` is the same on all of them."""
        self._what, self._since = (epoch, what), time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def interrupted(self) -> bool:
        """Whether the wait is over, see :meth:`Director.interrupted`; and looks at the time."""
        since = self._since
        if since is not None and not self._is_looking and time.monotonic() - since > self._seconds:
            self._is_looking = True
            threading.Thread(target=self._look, args=(since,), name="evenkeel-patience", daemon=True).start()
        return self._director.interrupted()

    def _look(self, since: float) -> None:
        try:
            assert self._what is not None, "somebody waits"
            epoch, what = self._what
            place = f"replicas/waits/{epoch.number}/{what}/{self._index}"
            self._rendezvous.announce(f"{place}/{self._replica}", self._index)
            time.sleep(max(self._seconds / 4, _LEAST_GRACE_SECONDS))
            others = [each for each in epoch.members if each.replica != self._replica]
            absent = [each for each in others if not self._rendezvous.heard(f"{place}/{each.replica}")]
            if self._since == since:
                why = f"the others have waited {time.monotonic() - since:.1f} s for it: it hangs"
                for each in absent:
                    self._director.say(Gone(replica=each.replica, token=each.token, why=why))
                self._since = time.monotonic()  # and for those who are there now, anew
        finally:
            self._is_looking = False
