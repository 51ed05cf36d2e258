"""A connection to the job's store that opens again by itself.

A ``TCPStore`` client whose server ended fails for ever, and opening another one blocks: so a helper thread does that,
and meanwhile there is no answer. What this process has set is there before anything else is asked.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from evenkeel.trainer_sdk.groups.c10d import Store, c10d
from evenkeel.trainer_sdk.groups.store.store_watch import StoreWatch

T = TypeVar("T")

_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 1.0


class StoreLink:
    """One thread's connection: a client holds its lock for as long as a call blocks. Opens in the background.

    Args:
        watch: Tells when the store ended.
    """

    def __init__(self, watch: StoreWatch) -> None:
        self._watch = watch
        self._changed = threading.Condition()
        self._store: Store | None = None
        self._generation = 0
        self._closed = False
        self._open_later()

    def put(self, entries: Mapping[str, bytes]) -> None:
        """Set entries; where the store is away, as soon as it is back. Does not block."""
        with self._changed:
            # Together: whoever opens the connection has told the store everything that came before.
            self._watch.entries.add(entries)
            store = self._current()
        if store is not None:
            self._try(store, lambda: store.multi_set(list(entries), list(entries.values())))

    def ask(self, question: Callable[[Store], T]) -> T | None:
        """The answer of a store that has it; None while the store is away.

        Args:
            question: Must not wait for anybody but the store.
        """
        with self._changed:
            store = self._current()
        return None if store is None else self._try(store, lambda: question(store))

    def demand(self, question: Callable[[Store], T], timeout_seconds: float) -> T:
        """As :meth:`ask`, and asks again when the store is back; the question may wait. On a helper thread.

        Raises:
            DistNetworkError: The store was away for so long, or the connection was closed.
            DistStoreError: What was asked for did not come within the question's own timeout.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            store = self._await_store(deadline)
            try:
                return question(store)
            except c10d.DistNetworkError:
                self._drop(store)

    def close(self) -> None:
        """Do not open again; whoever demands something gets an error when the store ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _await_store(self, deadline: float) -> Store:
        with self._changed:
            while (store := self._current()) is None:
                remaining = deadline - time.monotonic()
                if self._closed or remaining <= 0.0:
                    why = "was closed" if self._closed else "was away for too long"
                    raise c10d.DistNetworkError(f"the store at {self._watch.place}, or the connection to it, {why}")
                self._changed.wait(min(remaining, _LOOK_SECONDS))
            return store

    def _try(self, store: Store, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except c10d.DistNetworkError:
            self._drop(store)
            return None

    def _drop(self, store: Store) -> None:
        with self._changed:
            if self._store is store:
                self._store = None
                self._open_later()

    def _current(self) -> Store | None:
        """Under the lock: the client, unless the store that it was connected to has ended."""
        if self._store is not None and self._generation != self._watch.generation:
            self._store = None
            self._open_later()
        return self._store

    def _open_later(self) -> None:
        threading.Thread(target=self._open, name="evenkeel-store-link", daemon=True).start()

    def _open(self) -> None:
        while not self._closed:
            generation = self._watch.await_store(_LOOK_SECONDS)
            if generation is None:
                continue
            try:
                store = self._watch.place.connect()
                with self._changed:
                    self._watch.entries.set_in(store)
                    self._store, self._generation = store, generation
                    self._changed.notify_all()
            except RuntimeError:  # what torch raises when nobody answers; the watch tells of it
                time.sleep(_PAUSE_SECONDS)
            else:
                return
