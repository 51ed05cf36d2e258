"""How the ranks of an epoch find one another: keys in a store that no rank hosts.

The store may die and come back with nothing in it: every process tells it again what it had said, and meanwhile
nothing is heard. So each key is said by one rank, with one value, and who waits for keys looks until all are there.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from evenkeel.layouts.ranks.levels import WIDEST_GROUP, levels_of, path_of
from evenkeel.trainer_sdk.control.fleet.own_host import host_towards
from evenkeel.trainer_sdk.groups.c10d import Store, c10d
from evenkeel.trainer_sdk.groups.store.store_links import StoreLinks
from evenkeel.trainer_sdk.groups.store.store_place import StorePlace, is_loopback
from evenkeel.trainer_sdk.groups.store.store_watch import CONNECT_TIMEOUT_SECONDS, OwnEntries, StoreWatch
from evenkeel.trainer_sdk.groups.waiting import Waiter

_log = logging.getLogger(__name__)


class Rendezvous:
    """A connection to the job's store, under the job's prefix; belongs to one thread. Returns before it is open.

    Args:
        address: ``host:port`` of the store, or of several that hold the same, comma-separated.
        job_id: Prefix, so that jobs may share a store.
        watches: What connections of one process share; empty for the first.

    Attributes:
        watches: As given, or its own.

    Raises:
        ValueError: ``address`` is not ``host:port``.
    """

    def __init__(self, address: str, job_id: str, watches: Sequence[StoreWatch] = ()) -> None:
        self.address = address
        self.job_id = job_id
        places, entries = StorePlace.all_of(address, job_id), OwnEntries()
        self.loopback = all(is_loopback(each.host) for each in places)
        self.watches = tuple(watches) or tuple(StoreWatch(each, entries) for each in places)
        self._links = StoreLinks(self.watches)

    @cached_property
    def host(self) -> str:
        """The address of this host's interface that the stores are reached by; loopback where all are on this machine.

        Raises:
            OSError: There is no way to any of them.
        """
        if self.loopback:
            return "127.0.0.1"
        found = host_towards(self.address)
        if is_loopback(found):
            _log.warning(
                "this host knows %s by the loopback address %s, by which ranks on other hosts do not reach it: where "
                "there are any, give its address instead of its name",
                self.address,
                found,
            )
        return found

    def another(self) -> "Rendezvous":
        """A connection of its own for another thread."""
        return Rendezvous(self.address, self.job_id, self.watches)

    def close(self) -> None:
        """Who waits in this connection does not go on waiting in a later store."""
        self._links.close()

    def prefix(self, name: str) -> Store:
        """The part of the store below ``name``, for a backend that blocks in it: the store's death is a wait.

        It works as long as this rendezvous is there.
        """
        return c10d.PrefixStore(name, self._links)

    def bare(self, name: str) -> Store:
        """As :meth:`prefix`, for backends that look for torch's own client: the store's death is an error. Blocks.

        Raises:
            RuntimeError: The store was away for too long.
        """
        return self._links.demand(lambda store: c10d.PrefixStore(name, store), CONNECT_TIMEOUT_SECONDS)

    def announce(self, name: str, value: Any) -> None:
        """Set a key to a JSON value, for good: also in stores to come. Does not block."""
        self._links.put({name: json.dumps(value).encode()})

    def has_said(self, prefix: str) -> bool:
        """Whether this process set anything below ``prefix``, on whatever connection; also while the store is away."""
        return self.watches[0].entries.any_below(prefix)

    def forget(self, prefix: str) -> None:
        """What this process set below ``prefix`` need not outlive the store."""
        self.watches[0].entries.forget(prefix)

    def heard(self, name: str) -> bool:
        """Whether somebody announced ``name``; does not block, and is False while the store is away."""
        return bool(self._links.ask(lambda store: store.check([name])))

    def read(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """What ranks announced under ``name/RANK``, once they have; blocks until then."""
        keys = {rank: f"{name}/{rank}" for rank in ranks}
        found = self._links.multi_get(list(keys.values())) if keys else []
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
        :mod:`evenkeel.layouts.ranks.levels` goes on for its group, and tells it in the end.

        Raises:
            WaitBroken: The rank should park.
        """
        levels = levels_of(ranks, widest)
        path = path_of(levels, rank)
        said = [json.dumps(value)]
        for height, members in enumerate(path):
            level = f"{name}/{height}"
            self.announce(f"{level}/{rank}", said)
            keys = [f"{level}/{other}" for other in members]
            heard = self._await(keys, waiter, timeout_seconds, f"{level} of {members}")
            said = sorted({each for texts in heard for each in texts})
        told, leader = f"{name}/told", path[-1][0]
        if len(path) < len(levels):
            what = f"{name}, of which rank {leader} tells"
            (said,) = self._await([f"{told}/{leader}"], waiter, timeout_seconds, what)
        if len(path) > 1:
            self.announce(f"{told}/{rank}", said)
        return [json.loads(each) for each in said]

    def _await(self, keys: list[str], waiter: Waiter, timeout_seconds: float, what: str) -> list[Any]:
        """The values of keys, once all are there at the same time."""
        found: list[bytes] = []

        def are_there() -> bool:
            found[:] = self._links.ask(lambda store: store.multi_get(keys) if store.check(keys) else []) or []
            return bool(found)

        waiter.until(are_there, timeout_seconds, f"meeting {what}")
        return [json.loads(value) for value in found]
