"""Keeps a replica that does not reach all others from joining them: the network between two hosts can be cut alone.

It would find no epoch that works: they, or it, would have one another counted out, each time that it comes. Nor does it
join while a living process of its own number trains, which would end by that, come back, and end it in turn.
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
    """Wait while its double trains, or, as long as others do for one that hangs, while it reaches not all who train.

    Blocks. Who reaches nobody goes on: those who trained may have ended, hosts and all, and nobody is left to say so.

    Args:
        place: The process.
        newest: Says the newest epoch; None = nobody trains.
    """
    since, told, has_double = time.monotonic(), False, False
    with ThreadPoolExecutor(_NUM_AT_ONCE, "evenkeel-reach") as pool:
        while (waited_seconds := time.monotonic() - since) < place.hang_seconds or has_double:
            epoch = newest()
            lines = {each.replica: each.lines[place.index] for each in (() if epoch is None else epoch.members)}
            is_there = dict(zip(lines, pool.map(is_reached, lines.values()), strict=True))
            has_double = is_there.pop(place.replica, False)
            missing = [lines[replica] for replica in is_there if not is_there[replica]]
            if not has_double and len(missing) in (0, len(is_there)):
                return
            if waited_seconds > _TELL_AFTER_SECONDS and not told:
                told = True
                why = f"of those who train it reaches {len(is_there) - len(missing)}, and not {', '.join(missing)}"
                advice = "mend the network"
                if has_double:
                    why = f"a process of the same number trains, at {lines[place.replica]}"
                    advice = "end one of two equal launches, or give one of two hosts another number"
                _log.warning("replica %d does not join yet: %s; %s", place.replica, why, advice)
            time.sleep(_AGAIN_SECONDS)
    _log.warning("replica %d joins all the same: it, or who trains, may be counted out", place.replica)
