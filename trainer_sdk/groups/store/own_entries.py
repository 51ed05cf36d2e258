"""What this process has set in the job's store, so that a store that is started again, empty, can be given it again."""

import threading
from collections.abc import Mapping

from evenkeel.trainer_sdk.groups.c10d import Store


class OwnEntries:
    """Keys and values of this process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, entries: Mapping[str, bytes]) -> None:
        """Remember entries; before they are set, so that none is missed by :meth:`set_in`."""
        with self._lock:
            self._values.update(entries)

    def forget(self, prefix: str) -> None:
        """Nobody reads any more what begins so."""
        with self._lock:
            for key in [key for key in self._values if key.startswith(prefix)]:
                del self._values[key]

    def set_in(self, store: Store) -> int:
        """Set all of them in a store, which has them when this returns; returns how many.

        Raises:
            DistNetworkError: The store went away meanwhile.
        """
        with self._lock:
            values = dict(self._values)
        if values:
            store.multi_set(list(values), list(values.values()))
            store.check([next(iter(values))])  # nobody answers to a set: it is lost without a word in a dead connection
        return len(values)
