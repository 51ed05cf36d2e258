"""A connection to one of the job's stores that opens again by itself.

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
        changed: Notified when the connection is open.
    """

    def __init__(self, watch: StoreWatch, changed: threading.Condition) -> None:
        self._watch = watch
        self._changed = changed
        self._store: Store | None = None
        self._generation = 0
        self._closed = False
        with changed:
            self._open_later()

    def put(self, entries: Mapping[str, bytes]) -> None:
        """Set entries; where the store is away, as soon as it is back. Does not block."""
        with self._changed:
            # Together: whoever opens the connection has told the store everything that came before.
            self._watch.entries.add(entries)
            store = self.current()
        if store is not None:
            self.attempt(store, lambda: store.multi_set(list(entries), list(entries.values())))

    def ask(self, question: Callable[[Store], T]) -> T | None:
        """The answer of a store that has it; None while the store is away.

        Args:
            question: Must not wait for anybody but the store.
        """
        with self._changed:
            store = self.current()
        return None if store is None else self.attempt(store, lambda: question(store))

    def current(self) -> Store | None:
        """The client, unless the store that it was connected to has ended. Call with ``changed`` held."""
        if self._store is not None and self._generation != self._watch.generation:
            self._store = None
            self._open_later()
        return self._store

    def attempt(self, store: Store, action: Callable[[], T]) -> T | None:
        """What an action comes to; None when the store went away in it."""
        try:
            return action()
        except c10d.DistNetworkError:
            with self._changed:
                if self._store is store:
                    self._store = None
                    self._open_later()
            return None

    def close(self) -> None:
        """Do not open again. Call with ``changed`` held."""
        self._closed = True

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
