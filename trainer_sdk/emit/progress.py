"""Where the training thread is inside an iteration: written by it without a lock, read and told by another thread."""

from time import perf_counter
from typing import NamedTuple

from evenkeel.telemetry.v2 import process_pb2 as pb

_INTERVAL_SECONDS = 0.2
_QUIET_INTERVAL_SECONDS = 1.0  # of a rank that stands still without waiting

Reached = tuple[str, tuple[int, ...], float, tuple[int, int]]
"""An operation, the ranks it waits for, when it was reached on ``time.perf_counter``, and iteration and epoch."""


class Mark(NamedTuple):
    """One reading of the progress mark.

    Attributes:
        number: Grows from one reading to the next when another operation was reached in between.
        reached_at_seconds: On ``time.perf_counter``.
    """

    number: int
    operation: str
    waiting_for: tuple[int, ...]
    reached_at_seconds: float
    iteration: int
    epoch: int


class ProgressMark:
    """The newest operation reached. One writer and one reader, who sees either the old mark or the new one, no mix.

    Attributes:
        newest: A new tuple for every operation: binding one attribute to one immutable value is atomic, and that is
            the whole synchronisation. Whoever marks a hundred operations an iteration assigns it; others call
            :meth:`enter`.
        where: Iteration and epoch in progress, for ``newest``.
    """

    __slots__ = ("_number", "_read", "newest", "where")

    def __init__(self) -> None:
        self.where = (0, 0)
        # Plain tuples: building a named one takes three times as long, and the reader has time, to count too.
        self.newest: Reached = ("starting", (), perf_counter(), self.where)
        self._read: Reached = self.newest
        self._number = 0

    def begin_iteration(self, iteration: int, epoch: int) -> None:
        """Later marks belong to this iteration and epoch."""
        self.where = (iteration, epoch)

    def enter(self, operation: str, waiting_for: tuple[int, ...] = ()) -> None:
        """An operation is reached, for example ``forward`` or ``wait:tensor``.

        Args:
            operation: Short name; waits start with ``wait:``.
            waiting_for: Ranks that the operation waits for, if it is a wait and they are known.
        """
        self.newest = (operation, waiting_for, perf_counter(), self.where)

    def read(self) -> Mark:
        """The newest mark. The reading thread."""
        newest = self.newest
        if newest is not self._read:  # held here, so no other tuple has its address
            self._read = newest
            self._number += 1
        operation, waiting_for, reached_at_seconds, where = newest
        return Mark(self._number, operation, waiting_for, reached_at_seconds, *where)


class ProgressReports:
    """Turns readings of the mark into messages: pure, the clocks are arguments.

    A rank that waits is reported at every interval, because how long it has waited is the news. One that neither moves
    nor waits (stuck in its own code, or idle) is reported more seldom: enough to tell a stuck process from a dead one.

    Args:
        mark: What the training thread writes.
    """

    def __init__(self, mark: ProgressMark) -> None:
        self._mark = mark
        self._sent_number = -1
        self._sent_at_seconds = float("-inf")

    def take(self, now_seconds: float, now_unix_seconds: float) -> pb.Progress | None:
        """The report that is due now, or None.

        Args:
            now_seconds: ``time.perf_counter``, the clock of the mark.
            now_unix_seconds: Wall clock.
        """
        mark = self._mark.read()
        since_sent = now_seconds - self._sent_at_seconds
        news = mark.number != self._sent_number or mark.operation.startswith("wait:")
        if since_sent < (_INTERVAL_SECONDS if news else _QUIET_INTERVAL_SECONDS):
            return None
        self._sent_number = mark.number
        self._sent_at_seconds = now_seconds
        return pb.Progress(
            at_unix_seconds=now_unix_seconds,
            iteration=mark.iteration,
            epoch=mark.epoch,
            operation_count=mark.number,
            operation=mark.operation,
            seconds_in_operation=max(now_seconds - mark.reached_at_seconds, 0.0),
            waiting_for=mark.waiting_for,
        )
