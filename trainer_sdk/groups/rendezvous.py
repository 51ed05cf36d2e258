"""How the ranks of an epoch find one another: keys in a store that no rank hosts.

A ``TCPStore`` client holds its lock for as long as a call blocks, so whoever may block opens a connection of its own:
one :class:`Rendezvous` belongs to one thread.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from layouts.levels import WIDEST_GROUP, levels_of, path_of
from trainer_sdk.groups.c10d import Store, c10d
from trainer_sdk.groups.waiting import Waiter

CONNECT_TIMEOUT_SECONDS = 10.0


class Rendezvous:
    """A connection to the job's store, under the job's prefix.

    Args:
        address: ``host:port`` of the store.
        job_id: Prefix, so that jobs may share a store.

    Raises:
        ValueError: ``address`` is not ``host:port``.
    """

    def __init__(self, address: str, job_id: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"store address {address!r}: expected host:port")
        self.address = address
        self.job_id = job_id
        self.loopback = host in ("127.0.0.1", "localhost")
        client = c10d.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=CONNECT_TIMEOUT_SECONDS))
        self._store = c10d.PrefixStore(job_id, client)

    def another(self) -> "Rendezvous":
        """A connection of its own for another thread."""
        return Rendezvous(self.address, self.job_id)

    def prefix(self, name: str) -> Store:
        """The part of the store below ``name``."""
        return c10d.PrefixStore(name, self._store)

    def announce(self, name: str, value: Any) -> None:
        """Set a key to a JSON value."""
        self._store.set(name, json.dumps(value))

    def heard(self, name: str) -> bool:
        """Whether somebody announced ``name``; does not block."""
        return bool(self._store.check([name]))

    def read(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """What ranks announced under ``name/RANK``, once they have; blocks until then."""
        keys = {rank: f"{name}/{rank}" for rank in ranks}
        found = self._store.multi_get(list(keys.values())) if keys else []
        return {rank: json.loads(value) for rank, value in zip(keys, found, strict=True)}

    def meet(
        self,
        name: str,
        rank: int,
        ranks: Sequence[int],
        value: Any,
        *,
        waiter: Waiter,
        timeout_seconds: float,
        widest: int = WIDEST_GROUP,
    ) -> list[Any]:
        """Announce a value and wait until every rank did: returns what was said, equal values once.

        Nobody reads the values of more than ``widest`` ranks: with more, the first of each group of
        :mod:`layouts.levels` goes on for its group, and tells it in the end.

        Raises:
            Interrupted: The rank should park.
            PeerLost: Somebody did not come in time.
        """
        levels = levels_of(ranks, widest)
        path = path_of(levels, rank)
        said = [json.dumps(value)]
        for height, members in enumerate(path):
            level = f"{name}/{height}"
            self.announce(f"{level}/{rank}", said)
            self._await([f"{level}/{other}" for other in members], waiter, timeout_seconds, f"{level} of {members}")
            said = sorted({each for heard in self.read(level, members).values() for each in heard})
        told, leader = f"{name}/told", path[-1][0]
        if len(path) < len(levels):
            self._await([f"{told}/{leader}"], waiter, timeout_seconds, f"{name}, of which rank {leader} tells")
            said = self.read(told, [leader])[leader]
        if len(path) > 1:
            self.announce(f"{told}/{rank}", said)
        return [json.loads(each) for each in said]

    def _await(self, keys: list[str], waiter: Waiter, timeout_seconds: float, what: str) -> None:
        waiter.until(lambda: bool(self._store.check(keys)), timeout_seconds, f"meeting {what}")
