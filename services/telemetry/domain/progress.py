"""Watches where every rank of one job is, and takes pictures when the job stands still. Pure: the time is passed in.

Liveness is not progress: a rank that reports, but whose operation count stands still, has not moved. A job stands still
when no rank of it has moved for longer than its own pace explains; a rank is silent when nothing at all has come from
it for that long although others report. Either is worth a picture: the detector decides who is to blame. When nothing
comes from any rank, the way here is cut more likely than all of them ill: no picture until that has lasted. When it is
open again ranks come back one after another, each once its next try to connect is due: who is not back yet is in no
picture, for nothing is known of where it is.
"""

from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.domain.observed import ArrivedEvent, ArrivedProgress, EventKind, Picture, RankState
from evenkeel.services.telemetry.domain.rank_columns import RankColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRules:
    """When to take pictures.

    Attributes:
        still_seconds: A job that moves within this time never stands still.
        still_iterations: The same in iterations of the job; the longer of the two counts.
        still_at_start_seconds: The same before the first frame, when nobody knows the job's pace.
        silent_seconds: A rank from which something came within this time is not silent.
        cut_seconds: A job of whose reporting ranks none was heard for so long is cut off,
        cut_off_seconds: and believed to be so up to this time; beyond it pictures are taken.
        back_seconds: While ranks come back after a cut, nothing is known of one that was not heard for so long.
        picture_seconds: Time between two pictures while it lasts.
        calm_after_seconds: After so long the pictures get rarer:
        calm_picture_seconds: this is the time between two of them then.
    """

    still_seconds: float = 1.0
    still_iterations: float = 2.0
    still_at_start_seconds: float = 10.0
    silent_seconds: float = 2.0
    cut_seconds: float = 1.5
    cut_off_seconds: float = 15.0
    back_seconds: float = 1.0
    picture_seconds: float = 0.25
    calm_after_seconds: float = 10.0
    calm_picture_seconds: float = 1.0


class ProgressWatcher:
    """The newest progress of every rank of one job."""

    def __init__(self, rules: WatchRules | None = None) -> None:
        """Starts knowing no rank; a rank is known from the first thing that comes from it."""
        self._rules = rules or WatchRules()
        self._ranks = RankColumns()
        self._ended: dict[int, int] = {}
        self._moved_at_seconds: float | None = None
        # When the newest rank that reports was heard; kept, because it is asked for with every record.
        self._newest_heard: float | None = None
        self._newest_left = False
        self._picture_at_seconds: float | None = None
        self._disturbed_since_seconds: float | None = None
        self._all_back_at_seconds = 0.0

    @property
    def num_ranks(self) -> int:
        """Ranks that are not known to have ended."""
        return len(self._ranks)

    @property
    def disturbed(self) -> bool:
        """Whether pictures are being taken."""
        return self._disturbed_since_seconds is not None

    def known_until_seconds(self, now_seconds: float) -> float:
        """Up to when the reports say anything: without any lately, time alone proves nothing."""
        newest_seconds = self._newest_heard_seconds()
        if newest_seconds is None or now_seconds - newest_seconds >= self._rules.cut_off_seconds:
            return now_seconds
        return newest_seconds

    def cut_off(self, now_seconds: float) -> bool:
        """Whether nothing comes from any rank that used to report, and not for so long that it must be believed."""
        newest_seconds = self._newest_heard_seconds()
        if newest_seconds is None:
            return False
        return self._rules.cut_seconds < now_seconds - newest_seconds < self._rules.cut_off_seconds

    def wait_for_all(self, until_seconds: float) -> None:
        """Ranks come back one by one: up to this time nothing is known of one that is silent."""
        self._all_back_at_seconds = until_seconds

    def excuse(self, seconds: float) -> None:
        """So long nothing could be heard from the job at all: it counts neither as silence nor as standing still."""
        if self._moved_at_seconds is not None:
            self._moved_at_seconds += seconds
        if self._newest_heard is not None:
            self._newest_heard += seconds
        self._ranks.heard_at_seconds += seconds
        self._ranks.moved_at_seconds += seconds

    def heard(self, rank: int, incarnation: int, now_seconds: float) -> None:
        """Something came from a rank: it is there, which says nothing about progress."""
        ranks, row = self._ranks, self._ranks.row_of(rank)
        known = -1 if row < 0 else ranks.incarnations[row]
        if known == incarnation:
            ranks.heard_at_seconds[row] = now_seconds
            if ranks.reported[row]:
                self._note_heard(now_seconds)
        elif known < incarnation and self._ended.get(rank, -1) < incarnation:
            self._newest_left |= row >= 0 and bool(ranks.reported[row])
            ranks.put(rank, incarnation, now_seconds)

    def finished_iteration(self, rank: int, incarnation: int, now_seconds: float) -> None:
        """A sample came: the rank has moved."""
        self.finished_iterations(np.array([[rank, incarnation]]), np.ones(1, dtype=np.int64), now_seconds)

    def finished_iterations(self, processes: Ints, num_samples: Ints, now_seconds: float) -> None:
        """Records came: of those with samples, the ranks have moved.

        Args:
            processes: One row a record: rank and incarnation.
            num_samples: Samples of each.
            now_seconds: Unix seconds.
        """
        ranks, begin = self._ranks, 0
        processes, num_samples = np.ascontiguousarray(processes), np.ascontiguousarray(num_samples)
        while begin < len(processes):
            begin, moved, reported = _note_moved(
                processes,
                num_samples,
                begin,
                ranks.rows,
                ranks.incarnations,
                ranks.reported,
                ranks.heard_at_seconds,
                ranks.moved_at_seconds,
                now_seconds,
            )
            if moved:
                self._moved_at_seconds = now_seconds
            if reported:
                self._note_heard(now_seconds)
            if begin < len(processes):  # a process that is new, or that has ended
                rank, incarnation = processes[begin].tolist()
                self.heard(rank, incarnation, now_seconds)
                row = ranks.row_of(rank)
                begin += row < 0 or ranks.incarnations[row] != incarnation

    def add(self, progress: ArrivedProgress, now_seconds: float) -> None:
        """Takes in one progress report."""
        self.heard(progress.rank, progress.incarnation, now_seconds)
        ranks, row = self._ranks, self._ranks.row_of(progress.rank)
        if row < 0 or ranks.incarnations[row] != progress.incarnation:
            return
        if progress.operation_count != ranks.operation_counts[row]:
            # The report may be old news: trust the rank's own clock for how long it has been there.
            moved_at_seconds = now_seconds - max(0.0, progress.seconds_in_operation)
            if ranks.reported[row]:
                moved_at_seconds = max(moved_at_seconds, float(ranks.moved_at_seconds[row]))
            ranks.moved_at_seconds[row] = moved_at_seconds
            ranks.operation_counts[row] = progress.operation_count
            if self._moved_at_seconds is None or moved_at_seconds > self._moved_at_seconds:
                self._moved_at_seconds = moved_at_seconds
        ranks.payloads[row] = progress.payload
        ranks.reported[row] = True
        self._note_heard(now_seconds)

    def event(self, event: ArrivedEvent, now_seconds: float) -> None:
        """Takes in a life-cycle event: who ended is in no picture, who started is."""
        if event.kind in (EventKind.DIED, EventKind.FINISHED):
            self._ended[event.rank] = max(self._ended.get(event.rank, -1), event.incarnation)
            row = self._ranks.row_of(event.rank)
            if row >= 0 and self._ranks.incarnations[row] <= event.incarnation:
                self._newest_left |= bool(self._ranks.reported[row])
                self._ranks.remove(event.rank)
        elif event.kind is EventKind.STARTED:
            self.heard(event.rank, event.incarnation, now_seconds)

    def tick(self, now_seconds: float, *, iteration_seconds: float) -> Picture | None:
        """A picture if one is due.

        Args:
            now_seconds: Unix seconds.
            iteration_seconds: The job's pace; 0 if not known yet.
        """
        rules = self._rules
        if not len(self._ranks) or self._moved_at_seconds is None:
            self._disturbed_since_seconds = None
            return None
        pace_seconds = rules.still_iterations * iteration_seconds
        bound_seconds = max(rules.still_seconds, pace_seconds)
        if iteration_seconds == 0:
            bound_seconds = max(bound_seconds, rules.still_at_start_seconds)
        known_seconds = self.known_until_seconds(now_seconds)
        still = known_seconds - self._moved_at_seconds > bound_seconds
        if not still and not self._somebody_silent(known_seconds, max(rules.silent_seconds, pace_seconds)):
            if self._disturbed_since_seconds is None:
                return None
            self._disturbed_since_seconds = None
            return self._take(now_seconds)  # the picture that says: it moves again
        if self.cut_off(now_seconds):
            return None
        if self._disturbed_since_seconds is None:
            self._disturbed_since_seconds = now_seconds
            return self._take(now_seconds)
        calm = now_seconds - self._disturbed_since_seconds > rules.calm_after_seconds
        interval_seconds = rules.calm_picture_seconds if calm else rules.picture_seconds
        if self._picture_at_seconds is not None and now_seconds - self._picture_at_seconds < interval_seconds:
            return None
        return self._take(now_seconds)

    def _newest_heard_seconds(self) -> float | None:
        if self._newest_left:  # perhaps it was the newest one: only then all are looked at
            self._newest_left = False
            heard = self._ranks.heard_at_seconds[self._ranks.reported]
            self._newest_heard = float(heard.max()) if len(heard) else None
        return self._newest_heard

    def _note_heard(self, at_seconds: float) -> None:
        if self._newest_heard is None or at_seconds > self._newest_heard:
            self._newest_heard = at_seconds

    def _somebody_silent(self, known_seconds: float, bound_seconds: float) -> bool:
        """Only a rank that used to report can fall silent."""
        heard = self._ranks.heard_at_seconds[self._ranks.reported & self._are_back(known_seconds)]
        return bool(len(heard)) and known_seconds - float(heard.min()) > bound_seconds

    def _are_back(self, now_seconds: float) -> Bools:
        """False for ranks whose silence may be that of a cut, and of which nothing is known."""
        silent: Bools = now_seconds - self._ranks.heard_at_seconds > self._rules.back_seconds
        return ~silent | (now_seconds >= self._all_back_at_seconds)

    def _take(self, now_seconds: float) -> Picture:
        self._picture_at_seconds = now_seconds
        moved_at_seconds = self._moved_at_seconds if self._moved_at_seconds is not None else now_seconds
        ranks = self._ranks
        back, heard, moved = (
            each.tolist() for each in (self._are_back(now_seconds), ranks.heard_at_seconds, ranks.moved_at_seconds)
        )
        return Picture(
            at_seconds=now_seconds,
            ranks=tuple(
                RankState(
                    rank=rank,
                    incarnation=int(ranks.incarnations[row]),
                    payload=ranks.payloads[row],
                    seconds_since_heard=max(0.0, now_seconds - heard[row]),
                    seconds_since_moved=max(0.0, now_seconds - moved[row]),
                )
                for rank, row in sorted(ranks.items())
                if back[row]
            ),
            seconds_without_progress=max(0.0, now_seconds - moved_at_seconds),
        )


@compiled
def _note_moved(
    processes: Ints,
    num_samples: Ints,
    row: int,
    rows: Ints,
    incarnations: Ints,
    reported: Bools,
    heard_at_seconds: Floats,
    moved_at_seconds: Floats,
    now_seconds: float,
) -> tuple[int, bool, bool]:
    """Notes that processes have moved, up to the first one that is not known.

    Args:
        processes: One row a record: rank and incarnation.
        num_samples: Samples of each; without any nothing is noted.
        row: Where to begin.
        rows: Row in the other columns of each rank, -1 where it is not known; ranks beyond its end are not known.
        incarnations: The process that is known of each.
        reported: Whether it has ever reported.
        heard_at_seconds: When it was heard.
        moved_at_seconds: When it moved.
        now_seconds: Unix seconds.

    Returns:
        Where it came to, and whether any has moved, and any that has reported.
    """
    any_moved = any_reported = False
    while row < len(processes):
        if num_samples[row]:
            rank = processes[row, 0]
            at = rows[rank] if 0 <= rank < len(rows) else -1
            if at < 0 or incarnations[at] != processes[row, 1]:
                break
            heard_at_seconds[at] = moved_at_seconds[at] = now_seconds
            any_moved = True
            any_reported |= reported[at]
        row += 1
    return row, any_moved, any_reported
