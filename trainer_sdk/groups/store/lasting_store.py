"""The job's store as torch's process groups see it: its death is a wait.

Groups find their members' addresses in it while they are built. Each key is set once, by one rank, so a new store that
everybody tells again what it had set is as good as the old one, and whoever waits there goes on.
"""

from datetime import timedelta

from torch._C._distributed_c10d import Store

from evenkeel.trainer_sdk.groups.store.store_links import StoreLinks
from evenkeel.trainer_sdk.groups.store.store_watch import CONNECT_TIMEOUT_SECONDS


class LastingStore(Store):
    """What gloo asks of a store. Keep it as long as a group is being built: torch does not.

    Args:
        links: The connections; whoever builds groups may block in it.
    """

    def __init__(self, links: StoreLinks) -> None:
        super().__init__()
        self._links = links

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        """Set a key."""
        self._links.put({key: value})

    def get(self, key: str) -> bytes:
        """A key's value, once it is there."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Values of keys, once all are there."""
        found: list[bytes] = self._links.demand(lambda store: store.multi_get(keys), CONNECT_TIMEOUT_SECONDS)
        return found

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        """Set several keys."""
        self._links.put(dict(zip(keys, values, strict=True)))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self._links.demand(lambda store: bool(store.check(keys)), CONNECT_TIMEOUT_SECONDS)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=CONNECT_TIMEOUT_SECONDS)) -> None:
        """Wait until all keys are there."""
        self._links.demand(lambda store: store.wait(keys, timeout), timeout.total_seconds())

    def has_extended_api(self) -> bool:
        """Whether several keys can be asked for at once."""
        return True
