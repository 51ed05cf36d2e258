"""A group that is built beside the work of its members, for one use, and given up without a trace.

Its connections are its own: whatever is still on its way in it when it is given up harms no other group.
"""

import threading
from collections.abc import Callable, Iterable

from evenkeel.trainer_sdk.groups.group import Group


class SideGroup:
    """A group in the making, then a group. Training thread, which never waits for it, but for :meth:`wait`.

    Args:
        connect: Builds the group; blocks, on a helper thread. Raises RuntimeError when a member does not come.
        abandon: Frees groups; returns at once.

    Attributes:
        error: Why there will be no group; empty as long as there may be one.
    """

    def __init__(self, connect: Callable[[], Group], abandon: Callable[[Iterable[Group]], None]) -> None:
        self._connect = connect
        self._abandon = abandon
        self._lock = threading.Lock()
        self._group: Group | None = None
        self._given_up = False
        self._ended = threading.Event()
        self.error = ""
        threading.Thread(target=self._build, name="evenkeel-side-group", daemon=True).start()

    @property
    def group(self) -> Group | None:
        """The group, once it is there."""
        return self._group

    def wait(self) -> Group | None:
        """Wait on a helper thread until it is there; None where it never will be, or was given up."""
        self._ended.wait()
        return self._group

    def give_up(self) -> None:
        """Nobody needs it any more; also while it is being built. Returns at once."""
        self._ended.set()
        with self._lock:
            self._given_up = True
            group, self._group = self._group, None
        if group is not None:
            self._abandon((group,))

    def _build(self) -> None:
        try:
            group = self._connect()
        except RuntimeError as error:  # what torch raises for a store or a peer that does not answer
            self.error = str(error) or type(error).__name__
            self._ended.set()
            return
        with self._lock:
            if not self._given_up:
                self._group = group
                self._ended.set()
                return
        self._abandon((group,))
