"""Where the training thread is inside an iteration: written by it without a lock, read by the background thread."""

from time import monotonic
from typing import NamedTuple


class Mark(NamedTuple):
    """One reading of the progress mark; ``reached_at_seconds`` is on the monotonic clock."""

    number: int
    operation: str
    waiting_for: tuple[int, ...]
    reached_at_seconds: float
    iteration: int
    epoch: int


class ProgressMark:
    """The newest operation reached. One writer; a reader sees either the old mark or the new one, never a mix."""

    __slots__ = ("_mark", "_where")

    def __init__(self) -> None:
        self._where = (0, 0)
        # A plain tuple: building a named one takes three times as long, and the reader has time.
        self._mark: tuple[int, str, tuple[int, ...], float, tuple[int, int]] = (0, "starting", (), monotonic(), (0, 0))

    def begin_iteration(self, iteration: int, epoch: int) -> None:
        """Later marks belong to this iteration and epoch."""
        self._where = (iteration, epoch)

    def enter(self, operation: str, waiting_for: tuple[int, ...] = ()) -> None:
        """An operation is reached, for example ``forward`` or ``wait:tensor``.

        Args:
            operation: Short name; waits start with ``wait:``.
            waiting_for: Ranks that the operation waits for, if it is a wait and they are known.
        """
        # Binding one attribute to one immutable value is atomic: that is the whole synchronisation.
        self._mark = (self._mark[0] + 1, operation, waiting_for, monotonic(), self._where)

    def read(self) -> Mark:
        """The newest mark. Any thread."""
        number, operation, waiting_for, reached_at_seconds, where = self._mark
        return Mark(number, operation, waiting_for, reached_at_seconds, *where)
