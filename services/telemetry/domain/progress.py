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

from evenkeel.contracts.measured_arrays import Bools, Floats, Ints
from evenkeel.services.telemetry.domain.observed import (
    ENDS,
    ArrivedEvent,
    ArrivedProgress,
    EventKind,
    Picture,
    RankState,
)

_NEVER = -1
"""Operations of a rank that has not reported."""


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
    """The newest progress of every rank of one job: columns by rank, ascending."""

    def __init__(self, rules: WatchRules | None = None) -> None:
        """Starts knowing no rank; a rank is known from the first thing that comes from it."""
        self._rules = rules or WatchRules()
        self._rank, self._incarnation = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._heard_at_seconds: Floats = np.zeros(0)
        self._rank_moved_at_seconds: Floats = np.zeros(0)
        self._operation_count = np.zeros(0, dtype=np.int64)
        self._progress: list[ArrivedProgress | None] = []
        self._ended: dict[int, int] = {}
        self._moved_at_seconds: float | None = None
        self._picture_at_seconds: float | None = None
        self._disturbed_since_seconds: float | None = None
        self._all_back_at_seconds = 0.0

    @property
    def num_ranks(self) -> int:
        """Ranks that are not known to have ended."""
        return len(self._rank)

    @property
    def all_ended(self) -> bool:
        """Whether all of at least one rank are known to have ended."""
        return bool(self._ended) and not len(self._rank)

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
        self._heard_at_seconds += seconds
        self._rank_moved_at_seconds += seconds

    def finished_iterations(self, ranks: Ints, incarnations: Ints, now_seconds: float) -> None:
        """Iterations of these processes came: they have moved."""
        rows = self._heard(ranks, incarnations, now_seconds)
        self._rank_moved_at_seconds[rows] = now_seconds
        if len(rows):
            self._moved_at_seconds = now_seconds

    def add(self, progress: ArrivedProgress, now_seconds: float) -> None:
        """Takes in one progress report."""
        for row in self._heard(np.array([progress.rank]), np.array([progress.incarnation]), now_seconds).tolist():
            if progress.operation_count != self._operation_count[row]:
                # The report may be old news: trust the rank's own clock for how long it has been there.
                moved_at_seconds = now_seconds - max(0.0, progress.seconds_in_operation)
                if self._operation_count[row] != _NEVER:
                    moved_at_seconds = max(moved_at_seconds, float(self._rank_moved_at_seconds[row]))
                self._rank_moved_at_seconds[row] = moved_at_seconds
                self._operation_count[row] = progress.operation_count
                if self._moved_at_seconds is None or moved_at_seconds > self._moved_at_seconds:
                    self._moved_at_seconds = moved_at_seconds
            self._progress[row] = progress

    def event(self, event: ArrivedEvent, now_seconds: float) -> None:
        """Takes in a life-cycle event: who ended is in no picture, who started is."""
        if event.kind in ENDS:
            self._ended[event.rank] = max(self._ended.get(event.rank, -1), event.incarnation)
            ended = (self._rank == event.rank) & (self._incarnation <= event.incarnation)
            for row in np.flatnonzero(ended).tolist():
                self._remove(row)
        elif event.kind is EventKind.STARTED:
            self._heard(np.array([event.rank]), np.array([event.incarnation]), now_seconds)

    def tick(self, now_seconds: float, *, iteration_seconds: float) -> Picture | None:
        """A picture if one is due.

        Args:
            now_seconds: Unix seconds.
            iteration_seconds: The job's pace; 0 if not known yet.
        """
        rules = self._rules
        if not len(self._rank) or self._moved_at_seconds is None:
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

    @property
    def _reports(self) -> Bools:
        """True for ranks that used to report: only those can fall silent."""
        reports: Bools = self._operation_count != _NEVER
        return reports

    def _newest_heard_seconds(self) -> float | None:
        heard = self._heard_at_seconds[self._reports]
        return float(heard.max()) if len(heard) else None

    def _somebody_silent(self, known_seconds: float, bound_seconds: float) -> bool:
        heard = self._heard_at_seconds[self._reports & self._are_back(known_seconds)]
        return bool(len(heard)) and known_seconds - float(heard.min()) > bound_seconds

    def _are_back(self, now_seconds: float) -> Bools:
        """False for ranks whose silence may be that of a cut, and of which nothing is known."""
        silent: Bools = now_seconds - self._heard_at_seconds > self._rules.back_seconds
        return ~silent | (now_seconds >= self._all_back_at_seconds)

    def _take(self, now_seconds: float) -> Picture:
        self._picture_at_seconds = now_seconds
        moved_at_seconds = self._moved_at_seconds if self._moved_at_seconds is not None else now_seconds
        columns = (
            self._rank,
            self._incarnation,
            self._are_back(now_seconds),
            self._heard_at_seconds,
            self._rank_moved_at_seconds,
        )
        rows = zip(*(column.tolist() for column in columns), self._progress, strict=True)
        return Picture(
            at_seconds=now_seconds,
            ranks=tuple(
                RankState(
                    rank=rank,
                    incarnation=incarnation,
                    progress=progress,
                    seconds_since_heard=max(0.0, now_seconds - heard),
                    seconds_since_moved=max(0.0, now_seconds - moved),
                )
                for rank, incarnation, is_back, heard, moved, progress in rows
                if is_back
            ),
            seconds_without_progress=max(0.0, now_seconds - moved_at_seconds),
        )

    def _heard(self, ranks: Ints, incarnations: Ints, now_seconds: float) -> Ints:
        """Something came from processes: they are there, which says nothing about progress; rows of those that live."""
        rows, known = self._rows_of(ranks, incarnations)
        if not known.all():
            new = set(zip(ranks[~known].tolist(), incarnations[~known].tolist(), strict=True))
            for rank, incarnation in sorted(new):
                self._put(rank, incarnation, now_seconds)
            rows, known = self._rows_of(ranks, incarnations)
        rows = rows[known]
        self._heard_at_seconds[rows] = now_seconds
        return rows

    def _rows_of(self, ranks: Ints, incarnations: Ints) -> tuple[Ints, Bools]:
        """Where processes are, and which of them are there."""
        rows = np.searchsorted(self._rank, ranks)
        known: Bools = rows < len(self._rank)
        at = rows[known]
        known[known] = (self._rank[at] == ranks[known]) & (self._incarnation[at] == incarnations[known])
        return rows, known

    def _put(self, rank: int, incarnation: int, now_seconds: float) -> None:
        """A process that was heard of for the first time, unless a later one of its rank was, or it has ended."""
        row = int(np.searchsorted(self._rank, rank))
        is_there = row < len(self._rank) and self._rank[row] == rank
        if self._ended.get(rank, -1) >= incarnation or (is_there and self._incarnation[row] > incarnation):
            return
        if is_there:
            self._remove(row)
        self._rank, self._incarnation = np.insert(self._rank, row, rank), np.insert(self._incarnation, row, incarnation)
        self._heard_at_seconds = np.insert(self._heard_at_seconds, row, now_seconds)
        self._rank_moved_at_seconds = np.insert(self._rank_moved_at_seconds, row, now_seconds)
        self._operation_count = np.insert(self._operation_count, row, _NEVER)
        self._progress.insert(row, None)

    def _remove(self, row: int) -> None:
        for name in ("rank", "incarnation", "heard_at_seconds", "rank_moved_at_seconds", "operation_count"):
            setattr(self, f"_{name}", np.delete(getattr(self, f"_{name}"), row))
        del self._progress[row]
