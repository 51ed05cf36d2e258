"""Connections to all of the job's stores, which hold the same: each is told everything, and any of them answers.

A store that is away, host and all, is told the rest when it is back; the others go on answering meanwhile.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from evenkeel.trainer_sdk.groups.c10d import Store, c10d
from evenkeel.trainer_sdk.groups.store.store_link import StoreLink
from evenkeel.trainer_sdk.groups.store.store_watch import StoreWatch

T = TypeVar("T")

_LOOK_SECONDS = 1.0


class StoreLinks:
    """One thread's connections. They open in the background.

    Args:
        watches: Of all stores, or of some.
    """

    def __init__(self, watches: Sequence[StoreWatch]) -> None:
        self._names = ", ".join(str(each.place) for each in watches)
        self._changed = threading.Condition()
        self._links = [StoreLink(each, self._changed) for each in watches]
        self._closed = False

    def put(self, entries: Mapping[str, bytes]) -> None:
        """Set entries in every store; where one is away, as soon as it is back. Does not block."""
        for link in self._links:
            link.put(entries)

    def ask(self, question: Callable[[Store], T]) -> T | None:
        """The answer of the first store that has one; None while all are away.

        Args:
            question: Must not wait for anybody but the store.
        """
        for place, link in enumerate(self._links):
            answer = link.ask(question)
            if answer is not None:
                self._prefer(place)
                return answer
        return None

    def demand(self, question: Callable[[Store], T], timeout_seconds: float) -> T:
        """As :meth:`ask`, and asks again when a store is back; the question may wait. On a helper thread.

        Raises:
            DistNetworkError: All were away for so long, or the connections were closed.
            DistStoreError: What was asked for did not come within the question's own timeout.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            place, store = self._await_store(deadline)
            answer = self._links[place].attempt(store, lambda store=store: [question(store)])  # type: ignore[misc]
            if answer is not None:
                self._prefer(place)
                return answer[0]

    def close(self) -> None:
        """Do not open again; whoever demands something gets an error when the stores end."""
        with self._changed:
            self._closed = True
            for link in self._links:
                link.close()
            self._changed.notify_all()

    def _prefer(self, place: int) -> None:
        """One that was away comes back empty: the one that answered goes on answering."""
        if place:
            self._links = self._links[place:] + self._links[:place]

    def _await_store(self, deadline: float) -> tuple[int, Store]:
        with self._changed:
            while True:
                for place, link in enumerate(self._links):
                    store = link.current()
                    if store is not None:
                        return place, store
                remaining = deadline - time.monotonic()
                if self._closed or remaining <= 0.0:
                    why = "was closed" if self._closed else "was away for too long"
                    raise c10d.DistNetworkError(f"the store at {self._names}, or the connection to it, {why}")
                self._changed.wait(min(remaining, _LOOK_SECONDS))
