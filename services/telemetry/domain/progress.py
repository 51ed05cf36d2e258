"""Watches where every rank of one job is, and takes pictures when the job stands still. Pure: the time is passed in.

Liveness is not progress: a rank that reports, but whose operation count stands still, has not moved. A job stands still
when no rank of it has moved for longer than its own pace explains; a rank is silent when nothing at all has come from
it for that long although others report. Either is worth a picture: the detector decides who is to blame. When nothing
comes from any rank, the way here is cut more likely than all of them ill: no picture until that has lasted. When it is
open again ranks come back one after another, each once its next try to connect is due: who is not back yet is in no
picture, for nothing is known of where it is.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Ints
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
_WATCHED = np.dtype(
    [
        *((name, np.int64) for name in ("rank", "incarnation", "operation_count")),
        *((name, np.float64) for name in ("heard_at_seconds", "moved_at_seconds")),
        ("report", np.object_),
    ]
)


# A job that moves within this time, or within so many iterations of it, does not stand still; before the first frame,
# when nobody knows its pace, within the third.
_STILL_SECONDS, _STILL_ITERATIONS, _STILL_AT_START_SECONDS = 1.0, 2.0, 10.0
# A rank from which something came within this time is not silent.
_SILENT_SECONDS = 2.0
# A job of whose reporting ranks none was heard for so long is cut off, and believed to be so up to the second time.
_CUT_SECONDS, _CUT_OFF_SECONDS = 1.5, 15.0
# While ranks come back after a cut, nothing is known of one that was not heard for so long.
_BACK_SECONDS = 1.0
# Time between two pictures, and between two of those that are taken when it has lasted for so long.
_PICTURE_SECONDS, _CALM_PICTURE_SECONDS, _CALM_AFTER_SECONDS = 0.25, 1.0, 10.0


class ProgressWatcher:
    """The newest progress of every rank of one job, ascending.

    Attributes:
        all_back_at_seconds: Ranks come back one by one: up to this time nothing is known of one that is silent.
    """

    def __init__(self) -> None:
        """Starts knowing no rank; a rank is known from the first thing that comes from it."""
        self._ranks: npt.NDArray[np.void] = np.zeros(0, dtype=_WATCHED)
        self._ended: dict[int, int] = {}
        self._moved_at_seconds = self._picture_at_seconds = -np.inf
        self._disturbed_since_seconds: float | None = None
        self.all_back_at_seconds = 0.0

    @property
    def all_ended(self) -> bool:
        """Whether all of at least one rank are known to have ended."""
        return bool(self._ended) and not len(self._ranks)

    def known_until_seconds(self, now_seconds: float) -> float:
        """Up to when the reports say anything: without any lately, time alone proves nothing."""
        newest_seconds = self._newest_heard_seconds(now_seconds)
        return now_seconds if now_seconds - newest_seconds >= _CUT_OFF_SECONDS else newest_seconds

    def cut_off(self, now_seconds: float) -> bool:
        """Whether nothing comes from any rank that used to report, and not for so long that it must be believed."""
        silent_seconds = now_seconds - self._newest_heard_seconds(now_seconds)
        return _CUT_SECONDS < silent_seconds < _CUT_OFF_SECONDS

    def excuse(self, seconds: float) -> None:
        """So long nothing could be heard from the job at all: it counts neither as silence nor as standing still."""
        self._moved_at_seconds += seconds
        self._ranks["heard_at_seconds"] += seconds
        self._ranks["moved_at_seconds"] += seconds

    def finished_iterations(self, ranks: Ints, incarnations: Ints, now_seconds: float) -> None:
        """Iterations of these processes came: they have moved."""
        rows = self._heard(ranks, incarnations, now_seconds)
        self._ranks["moved_at_seconds"][rows] = now_seconds
        if len(rows):
            self._moved_at_seconds = now_seconds

    def add(self, progress: ArrivedProgress, now_seconds: float) -> None:
        """Takes in one progress report."""
        report = progress.report
        for row in self._heard(np.array([progress.rank]), np.array([progress.incarnation]), now_seconds).tolist():
            known = self._ranks[row]
            if report.operation_count != known["operation_count"]:
                # The report may be old news: trust the rank's own clock for how long it has been there.
                moved_at_seconds = now_seconds - max(0.0, report.seconds_in_operation)
                if known["operation_count"] != _NEVER:
                    moved_at_seconds = max(moved_at_seconds, float(known["moved_at_seconds"]))
                known["moved_at_seconds"], known["operation_count"] = moved_at_seconds, report.operation_count
                self._moved_at_seconds = max(self._moved_at_seconds, moved_at_seconds)
            known["report"] = report

    def event(self, event: ArrivedEvent, now_seconds: float) -> None:
        """Takes in a life-cycle event: who ended is in no picture, who started is."""
        if event.kind in ENDS:
            self._ended[event.rank] = max(self._ended.get(event.rank, -1), event.incarnation)
            gone = (self._ranks["rank"] == event.rank) & (self._ranks["incarnation"] <= event.incarnation)
            self._ranks = self._ranks[~gone]
        elif event.kind is EventKind.STARTED:
            self._heard(np.array([event.rank]), np.array([event.incarnation]), now_seconds)

    def tick(self, now_seconds: float, *, iteration_seconds: float) -> Picture | None:
        """A picture if one is due.

        Args:
            now_seconds: Unix seconds.
            iteration_seconds: The job's pace; 0 if not known yet.
        """
        if not len(self._ranks) or self._moved_at_seconds == -np.inf:
            self._disturbed_since_seconds = None
            return None
        pace_seconds = _STILL_ITERATIONS * iteration_seconds
        bound_seconds = max(_STILL_SECONDS, pace_seconds)
        if iteration_seconds == 0:
            bound_seconds = max(bound_seconds, _STILL_AT_START_SECONDS)
        known_seconds = self.known_until_seconds(now_seconds)
        still = known_seconds - self._moved_at_seconds > bound_seconds
        if not still and not self._somebody_silent(known_seconds, max(_SILENT_SECONDS, pace_seconds)):
            if self._disturbed_since_seconds is None:
                return None
            self._disturbed_since_seconds = None
            return self._take(now_seconds)  # the picture that says: it moves again
        if self.cut_off(now_seconds):
            return None
        if self._disturbed_since_seconds is None:
            self._disturbed_since_seconds = now_seconds
            return self._take(now_seconds)
        calm = now_seconds - self._disturbed_since_seconds > _CALM_AFTER_SECONDS
        interval_seconds = _CALM_PICTURE_SECONDS if calm else _PICTURE_SECONDS
        return self._take(now_seconds) if now_seconds - self._picture_at_seconds >= interval_seconds else None

    @property
    def _reports(self) -> Bools:
        """True for ranks that used to report: only those can fall silent."""
        reports: Bools = self._ranks["operation_count"] != _NEVER
        return reports

    def _newest_heard_seconds(self, now_seconds: float) -> float:
        """When anything came from a rank that reports; now if there is none."""
        heard = self._ranks["heard_at_seconds"][self._reports]
        return float(heard.max()) if len(heard) else now_seconds

    def _somebody_silent(self, known_seconds: float, bound_seconds: float) -> bool:
        heard = self._ranks["heard_at_seconds"][self._reports & self._are_back(known_seconds)]
        return bool((known_seconds - heard > bound_seconds).any())

    def _are_back(self, now_seconds: float) -> Bools:
        """False for ranks whose silence may be that of a cut, and of which nothing is known."""
        silent: Bools = now_seconds - self._ranks["heard_at_seconds"] > _BACK_SECONDS
        return ~silent | (now_seconds >= self.all_back_at_seconds)

    def _take(self, now_seconds: float) -> Picture:
        self._picture_at_seconds = now_seconds
        return Picture(
            at_seconds=now_seconds,
            ranks=tuple(
                RankState(rank, incarnation, report, max(0.0, now_seconds - heard), max(0.0, now_seconds - moved))
                for rank, incarnation, _, heard, moved, report in self._ranks[self._are_back(now_seconds)].tolist()
            ),
            seconds_without_progress=max(0.0, now_seconds - self._moved_at_seconds),
        )

    def _heard(self, ranks: Ints, incarnations: Ints, now_seconds: float) -> Ints:
        """Something came from processes: they are there, which says nothing about progress; rows of those that live."""
        rows, known = self._rows_of(ranks, incarnations)
        if not known.all():
            self._put(zip(ranks[~known].tolist(), incarnations[~known].tolist(), strict=True), now_seconds)
            rows, known = self._rows_of(ranks, incarnations)
        rows = rows[known]
        self._ranks["heard_at_seconds"][rows] = now_seconds
        return rows

    def _rows_of(self, ranks: Ints, incarnations: Ints) -> tuple[Ints, Bools]:
        """Where processes are, and which of them are there."""
        rows = np.searchsorted(self._ranks["rank"], ranks)
        known: Bools = rows < len(self._ranks)
        at = self._ranks[rows[known]]
        known[known] = (at["rank"] == ranks[known]) & (at["incarnation"] == incarnations[known])
        return rows, known

    def _put(self, processes: Iterable[tuple[int, int]], now_seconds: float) -> None:
        """Processes that were heard of for the first time, but those of which a later one was, or that have ended."""
        live = {each for each in processes if each[1] > self._ended.get(each[0], -1)}
        if live:
            new = [(*process, _NEVER, now_seconds, now_seconds, None) for process in live]
            ranks = np.concatenate((self._ranks, np.array(new, dtype=_WATCHED)))
            ranks = ranks[np.lexsort((ranks["incarnation"], ranks["rank"]))]
            rank: Ints = ranks["rank"]
            self._ranks = ranks[np.append(rank[1:] != rank[:-1], True)]
