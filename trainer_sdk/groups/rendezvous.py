"""How the ranks of an epoch find one another: keys in a store that no rank hosts.

A ``TCPStore`` client holds its lock for as long as a call blocks, so whoever may block opens a connection of its own:
one :class:`Rendezvous` belongs to one thread.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

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

    def meet(
        self, name: str, rank: int, ranks: Sequence[int], value: Any, *, waiter: Waiter, timeout_seconds: float
    ) -> dict[int, Any]:
        """Announce a value and wait until every rank did: returns everybody's.

        Raises:
            Interrupted: The rank should park.
            PeerLost: Somebody did not come in time.
        """
        keys = [f"{name}/{other}" for other in ranks]
        self.announce(f"{name}/{rank}", value)
        waiter.until(lambda: bool(self._store.check(keys)), timeout_seconds, f"meeting {name} of ranks {tuple(ranks)}")
        return {other: json.loads(found) for other, found in zip(ranks, self._store.multi_get(keys), strict=True)}
