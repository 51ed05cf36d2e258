"""Which clocks a recording of iterations has, and what they read."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.iterations.file import RecordedIterations
from evenkeel.services.detector.domain.scan.residual.clocks import Readings
from evenkeel.services.detector.domain.scan.residual.throttling import Throttling

_FEWEST = 0.5
_USUAL = 0.25


class ClockChoice(StrEnum):
    """Which clocks of a recording to judge by."""

    ALL = "all"
    WALL = "wall"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedClocks:
    """The clocks of a recording, one row an iteration, one column a rank.

    Attributes:
        work: Seconds on a core, or by the wall; NaN where nothing was recorded.
        blocked: Seconds blocked in a rank's own doing; None where that is not known.
        waiting: Seconds waiting for a core; None where that is not known.
        wall: Seconds by the wall; None where ``work`` is judged by it.
        notes: What could not be used.
    """

    work: Floats
    blocked: Floats | None
    waiting: Floats | None
    wall: Floats | None
    notes: tuple[str, ...]

    def of(self, row: int) -> Readings:
        """What they read in one iteration."""
        return Readings(
            work_seconds=self.work[row],
            blocked_seconds=None if self.blocked is None else self.blocked[row],
            waiting_seconds=None if self.waiting is None else self.waiting[row],
            wall_seconds=None if self.wall is None else self.wall[row],
        )


def clocks_of(recording: RecordedIterations, choice: ClockChoice) -> RecordedClocks:
    """The clocks to judge by: all that there are, or the wall alone.

    Raises:
        RecordingError: No rank did anything by the clock that is to be judged by.
    """
    columns = recording.columns
    wall = _above_0(columns["compute_seconds"])
    worked = np.isfinite(wall)
    if not worked.any():
        raise RecordingError("compute_seconds is 0 in every row: nothing can be compared")
    if choice is ClockChoice.WALL:
        return RecordedClocks(work=wall, blocked=None, waiting=None, wall=None, notes=())

    def known(name: str) -> Floats | None:
        found = columns.get(name)
        return found if found is not None and np.isfinite(found[worked]).mean() >= _FEWEST else None

    cpu = known("cpu_seconds")
    if cpu is None or not (cpu > 0).any():
        note = "no cpu_seconds: judged by the wall clock alone, which on shared cores is ten times less steady"
        return RecordedClocks(work=wall, blocked=None, waiting=None, wall=None, notes=(note,))
    queue, wait = known("queue_seconds"), known("wait_seconds")
    loop = known("loop_wall_seconds")
    span = loop if loop is not None else known("wall_seconds")
    if queue is None or wait is None or span is None:
        lacks = [name for name, found in (("queue_seconds", queue), ("wait_seconds", wait)) if found is None]
        lacks += [] if span is not None else ["loop_wall_seconds"]
        note = f"no {', '.join(lacks)}: who is blocked is not known"
        return RecordedClocks(work=_above_0(cpu), blocked=None, waiting=queue, wall=wall, notes=(note,))
    blocked = span - cpu - queue - wait
    # Ready for a core within a wait for others counts as both: what is far below what is usual is that, and no less.
    blocked = np.maximum(blocked, min(np.nanquantile(blocked, _USUAL), 0.0))
    held = known("throttled_seconds")
    if held is not None:
        # As in a job that is watched: what a rank waits for a core is its host's doing, but as far as a quota holds it.
        held_now = _held_in_each(held, queue, span)
        return RecordedClocks(work=_above_0(cpu), blocked=blocked, waiting=held_now, wall=wall - queue, notes=())
    return RecordedClocks(work=_above_0(cpu), blocked=blocked, waiting=queue, wall=wall, notes=())


def _held_in_each(totals: Floats, queued_seconds: Floats, wall_seconds: Floats) -> Floats:
    """Of each iteration what a quota held each rank for."""
    throttling, ranks = Throttling(), np.arange(totals.shape[1])
    rows = zip(totals, queued_seconds, wall_seconds, strict=True)
    return np.array(
        [
            throttling.held(ranks, queued, wall, np.column_stack((ranks, total))[np.isfinite(total)])
            for total, queued, wall in rows
        ]
    )


def _above_0(seconds: Floats) -> Floats:
    return np.where(seconds > 0, seconds, np.nan)
