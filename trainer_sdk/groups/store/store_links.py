"""Connections to all of the job's stores, which hold the same: each is told everything, and any of them answers.

A ``TCPStore`` client whose server ended fails for ever, and opening another one blocks: so a helper thread does that,
and meanwhile the other stores answer. What this process has set is there before anything else is asked, also in a store
that was away, host and all.

Torch's process groups see it as their store, whose death is a wait: they find their members' addresses in it while they
are built. Each key is set once, by one rank, so a new store that everybody tells again what it had set is as good as
the old one, and whoever waits there goes on.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import Store as TorchStore

from evenkeel.trainer_sdk.groups.c10d import Store, c10d
from evenkeel.trainer_sdk.groups.store.store_watch import CONNECT_TIMEOUT_SECONDS, StoreWatch

T = TypeVar("T")

_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 0.05


@dataclass(slots=True, eq=False)
class _Link:
    """The connection to one store: a client, which holds its lock for as long as a call blocks; None = not open."""

    watch: StoreWatch
    store: Store | None = None
    generation: int = 0


class StoreLinks(TorchStore):
    """One thread's connections. They open in the background.

    Keep it as long as a group is being built in it, which may block: torch does not.

    Args:
        watches: Of all stores, or of some.
    """

    def __init__(self, watches: Sequence[StoreWatch]) -> None:
        super().__init__()
        self._names = ", ".join(str(each.place) for each in watches)
        self._changed = threading.Condition()
        self._links = [_Link(each) for each in watches]
        self._closed = False
        for link in self._links:
            self._open_later(link)

    def put(self, entries: Mapping[str, bytes]) -> None:
        """Set entries in every store; where one is away, as soon as it is back. Does not block."""
        for link in self._links:
            with self._changed:
                # Together: whoever opens the connection has told the store everything that came before.
                link.watch.entries.add(entries)
                store = self._current(link)
            if store is not None:
                self._attempt(link, store, lambda store: store.multi_set(list(entries), list(entries.values())))

    def ask(self, question: Callable[[Store], T]) -> T | None:
        """The answer of the first store that has one; None while all are away.

        Args:
            question: Must not wait for anybody but the store.
        """
        for link in self._links:
            with self._changed:
                store = self._current(link)
            answer = None if store is None else self._attempt(link, store, question)
            if answer is not None:
                self._prefer(link)
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
            link, store = self._await_store(deadline)
            answer = self._attempt(link, store, lambda store: [question(store)])
            if answer is not None:
                self._prefer(link)
                return answer[0]

    def close(self) -> None:
        """Do not open again; whoever demands something gets an error when the stores end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- what gloo asks of a store

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        """Set a key."""
        self.put({key: value})

    def get(self, key: str) -> bytes:
        """A key's value, once it is there."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Values of keys, once all are there."""
        found: list[bytes] = self.demand(lambda store: store.multi_get(keys), CONNECT_TIMEOUT_SECONDS)
        return found

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        """Set several keys."""
        self.put(dict(zip(keys, values, strict=True)))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self.demand(lambda store: bool(store.check(keys)), CONNECT_TIMEOUT_SECONDS)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=CONNECT_TIMEOUT_SECONDS)) -> None:
        """Wait until all keys are there."""
        self.demand(lambda store: store.wait(keys, timeout), timeout.total_seconds())

    def has_extended_api(self) -> bool:
        """Whether several keys can be asked for at once."""
        return True

    # ---- inside

    def _prefer(self, link: _Link) -> None:
        """One that was away comes back empty: the one that answered goes on answering."""
        place = self._links.index(link)
        if place:
            self._links = self._links[place:] + self._links[:place]

    def _await_store(self, deadline: float) -> tuple[_Link, Store]:
        with self._changed:
            while True:
                for link in self._links:
                    store = self._current(link)
                    if store is not None:
                        return link, store
                remaining = deadline - time.monotonic()
                if self._closed or remaining <= 0.0:
                    why = "was closed" if self._closed else "was away for too long"
                    raise c10d.DistNetworkError(f"the store at {self._names}, or the connection to it, {why}")
                self._changed.wait(min(remaining, _LOOK_SECONDS))

    def _current(self, link: _Link) -> Store | None:
        """The client, unless the store that it was connected to has ended. Under the lock."""
        if link.store is not None and link.generation != link.watch.generation:
            link.store = None
            self._open_later(link)
        return link.store

    def _attempt(self, link: _Link, store: Store, action: Callable[[Store], T]) -> T | None:
        """What an action comes to; None when the store went away in it."""
        try:
            return action(store)
        except c10d.DistNetworkError:
            with self._changed:
                if link.store is store:
                    link.store = None
                    self._open_later(link)
            return None

    def _open_later(self, link: _Link) -> None:
        threading.Thread(target=self._open, args=(link,), name="evenkeel-store-link", daemon=True).start()

    def _open(self, link: _Link) -> None:
        while not self._closed:
            generation = link.watch.await_store(_LOOK_SECONDS)
            if generation is None:
                continue
            place = link.watch.place
            try:
                # The watch may not have seen an end yet, and torch's client writes stack traces where nobody answers.
                socket.create_connection((place.host, place.port), CONNECT_TIMEOUT_SECONDS).close()
                store = link.watch.connect()
                with self._changed:
                    link.watch.entries.set_in(store)
                    link.store, link.generation = store, generation
                    self._changed.notify_all()
            except (OSError, RuntimeError):  # what torch raises when nobody answers; the watch tells of it
                time.sleep(_PAUSE_SECONDS)
            else:
                return
