"""When progress is worth sending: often while something moves or waits, seldom while nothing does."""

from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.trainer_sdk.emit.progress import ProgressMark


class ProgressReports:
    """Turns readings of the mark into messages: pure, the clocks are arguments.

    A rank that waits is reported at every interval, because how long it has waited is the news. One that neither moves
    nor waits (stuck in its own code, or idle) is reported more seldom: enough to tell a stuck process from a dead one.

    Args:
        mark: What the training thread writes.
        interval_seconds: Shortest time between two reports.
        quiet_interval_seconds: Time between two reports of a rank that stands still without waiting.
    """

    def __init__(self, mark: ProgressMark, interval_seconds: float = 0.2, quiet_interval_seconds: float = 1.0) -> None:
        self._mark = mark
        self._interval_seconds = interval_seconds
        self._quiet_interval_seconds = quiet_interval_seconds
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
        if since_sent < (self._interval_seconds if news else self._quiet_interval_seconds):
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
