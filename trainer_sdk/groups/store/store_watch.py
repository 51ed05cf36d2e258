"""Notices the end of the job's store, and tells the next one what this process had told it.

The store may die and come back at the same address with nothing in it. Those who said something there may compute for
minutes before they look at it again, while others wait for it: so a thread holds a connection that says nothing and
ends with the store. It is no client of torch's, which would write a stack trace at each end.
"""

import contextlib
import logging
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from datetime import timedelta

from evenkeel.trainer_sdk.groups.c10d import Store, c10d
from evenkeel.trainer_sdk.groups.store.silence import bound_silence, end_all_towards, peer_of
from evenkeel.trainer_sdk.groups.store.store_place import StorePlace

CONNECT_TIMEOUT_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0
_TELL_EVERY_SECONDS = 30.0
_LONG_AWAY_SECONDS = 5.0
_NOTICED_SECONDS = 1.0

_log = logging.getLogger(__name__)


class OwnEntries:
    """What this process has set in the job's store, to be told to one that starts again, empty. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, entries: Mapping[str, bytes]) -> None:
        """Remember entries; before they are set, so that none is missed by :meth:`set_in`."""
        with self._lock:
            self._values.update(entries)

    def any_below(self, prefix: str) -> bool:
        """Whether one begins so."""
        with self._lock:
            return any(key.startswith(prefix) for key in self._values)

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


class StoreWatch:
    """One for all connections of a process to one store. Any thread.

    Its thread ends when nobody has the watch any more and the store ends.

    Args:
        place: The store.
        entries: What this process has set, in this store and in others.

    Attributes:
        place: The store.
        entries: As given.
        generation: How many ends of the store were seen: connections that are older are dead.
    """

    def __init__(self, place: StorePlace, entries: OwnEntries) -> None:
        self.place = place
        self.entries = entries
        self._changed = threading.Condition()
        self.generation = 0
        self._is_there = False
        threading.Thread(target=_run, args=(weakref.ref(self), place), name="evenkeel-store-watch", daemon=True).start()

    def connect(self) -> Store:
        """A client under the job's prefix; blocks until a store answers, so on a helper thread.

        Raises:
            RuntimeError: Nobody listens there, or the store ended meanwhile.
        """
        timeout = timedelta(seconds=CONNECT_TIMEOUT_SECONDS)
        client = c10d.TCPStore(self.place.host, self.place.port, is_master=False, timeout=timeout)
        return c10d.PrefixStore(self.place.job_id, client)

    def await_store(self, timeout_seconds: float) -> int | None:
        """The generation, once its store is being watched: who connects then misses no end. None after the timeout."""
        with self._changed:
            return self.generation if self._changed.wait_for(lambda: self._is_there, timeout_seconds) else None

    def found(self) -> int:
        """The watch's thread is connected: tell the store everything; returns how much that was.

        Raises:
            RuntimeError: It ended meanwhile.
        """
        with self._changed:
            self._is_there = True
            self._changed.notify_all()
        return self.entries.set_in(self.connect()) if len(self.entries) else 0

    def lost(self) -> None:
        """The watch's thread has seen the end of a store."""
        with self._changed:
            self.generation += 1
            self._is_there = False


def _run(owner: "weakref.ref[StoreWatch]", place: StorePlace) -> None:
    pause, since, told_at = _FIRST_PAUSE_SECONDS, time.monotonic(), 0.0
    num_ends = 0
    while (watch := owner()) is not None:
        why, peer = "", None
        try:
            with socket.create_connection((place.host, place.port), CONNECT_TIMEOUT_SECONDS) as line:
                line.settimeout(None)
                bound_silence(line)
                peer = peer_of(line)
                num_entries = watch.found()
                if num_ends:
                    away_seconds = time.monotonic() - since
                    level = logging.INFO if away_seconds > _NOTICED_SECONDS else logging.DEBUG  # every rank says so
                    words = "the store at %s is back after %.2f s; it was told %d entries"
                    _log.log(level, words, place, away_seconds, num_entries)
                pause = _FIRST_PAUSE_SECONDS
                del watch  # whoever drops the last connection to the store drops the watch
                with contextlib.suppress(OSError):
                    line.recv(1)  # it never says anything: this returns when it ends
            since = time.monotonic()
        except (OSError, RuntimeError) as error:  # what sockets and torch raise when nobody answers
            why = str(error)
        num_ends += 1
        if (watch := owner()) is not None:
            watch.lost()
            if peer is not None:
                with contextlib.suppress(OSError):  # no descriptor is left to look with
                    end_all_towards(peer)
        del watch
        if why:
            now = time.monotonic()
            if now - since > _LONG_AWAY_SECONDS and now - told_at > _TELL_EVERY_SECONDS:
                told_at = now
                _log.warning("nobody has answered as the store at %s for %.0f s: %s", place, now - since, why)
            time.sleep(pause)
            pause = min(2.0 * pause, _LONGEST_PAUSE_SECONDS)
