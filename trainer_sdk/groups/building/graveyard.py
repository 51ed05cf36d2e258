"""Where old process groups go.

Destroying a group that has an operation pending blocks until that operation times out, so the training thread never
drops one: it hands it over, and a helper thread does. Pending operations end as soon as the peers' sockets close.
"""

import queue
import threading
from collections.abc import Iterable
from typing import Protocol


class Buried(Protocol):
    """Something whose destruction may block."""

    def bury(self) -> None:
        """Free it; may block. Called once, on the helper thread."""


class Graveyard:
    """Frees groups on a helper thread, one after the other."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Buried] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def abandon(self, groups: Iterable[Buried]) -> None:
        """Hand groups over; returns at once. The caller must drop its own references."""
        for group in groups:
            self._queue.put(group)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="evenkeel-graveyard", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            # One thread per burial: a group that blocks must not keep the memory of those behind it.
            threading.Thread(target=self._queue.get().bury, name="evenkeel-burial", daemon=True).start()
