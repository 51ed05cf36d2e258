"""Where old process groups go."""

import threading
from collections.abc import Iterable

from evenkeel.trainer_sdk.groups.group import Group


def bury(groups: Iterable[Group]) -> None:
    """Hand groups over; returns at once. The caller must drop its own references.

    Destroying a group that has an operation pending blocks until that operation times out, so the training thread never
    drops one. Pending operations end as soon as the peers' sockets close.
    """
    given = list(groups)

    def bury_all() -> None:
        # One thread per burial: a group that blocks must not keep the memory of those behind it.
        while given:
            threading.Thread(target=given.pop(0).bury, name="evenkeel-burial", daemon=True).start()

    if given:
        threading.Thread(target=bury_all, name="evenkeel-graveyard", daemon=True).start()
