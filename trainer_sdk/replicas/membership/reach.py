"""Keeps a replica that does not reach all others from joining them: the network between two hosts can be cut alone.

It would find no epoch that works: they, or it, would have one another counted out, each time that it comes.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from evenkeel.trainer_sdk.groups.lifelines import is_reached
from evenkeel.trainer_sdk.replicas.membership.roster import Epoch
from evenkeel.trainer_sdk.replicas.place import Place

_AGAIN_SECONDS = 0.5
_TELL_AFTER_SECONDS = 10.0
"""Longer than the others take to notice that somebody is gone."""
_NUM_AT_ONCE = 32
_log = logging.getLogger("evenkeel.replicas")


def await_reach(place: Place, newest: Callable[[], Epoch | None]) -> None:
    """Wait while a process reaches some of those who train, and not all; as long as others would for one who hangs.

    Blocks. Who reaches nobody goes on: those who trained may have ended, hosts and all, and nobody is left to say so.

    Args:
        place: The process.
        newest: Says the newest epoch; None = nobody trains.
    """
    since, told = time.monotonic(), False
    with ThreadPoolExecutor(_NUM_AT_ONCE, "evenkeel-reach") as pool:
        while (waited_seconds := time.monotonic() - since) < place.hang_seconds:
            epoch = newest()
            members = () if epoch is None else epoch.members
            lines = [each.lines[place.index] for each in members if each.replica != place.replica]
            missing = [line for line, is_there in zip(lines, pool.map(is_reached, lines), strict=True) if not is_there]
            if len(missing) in (0, len(lines)):
                return
            if waited_seconds > _TELL_AFTER_SECONDS and not told:
                told = True
                _log.warning(
                    "replica %d does not join yet: of those who train it reaches %d, and not %s; mend the network",
                    place.replica,
                    len(lines) - len(missing),
                    ", ".join(missing),
                )
            time.sleep(_AGAIN_SECONDS)
    _log.warning("replica %d joins without reaching all who train: it, or they, may be counted out", place.replica)
