"""Communication that became slow: from the stamps of a frame to what is told of whom.

Waiting is not transfer: a straggler delays whoever waits for it and no transfer, a slow link lengthens transfers and
no computation, so neither is taken for the other.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.links.complaint import LinkComplaint, LinkFinding
from evenkeel.services.detector.domain.links.rows import SMALLEST_SLOWDOWN, LinkRows
from evenkeel.services.detector.domain.links.transfers.cost import TransferCost
from evenkeel.services.detector.domain.links.transfers.times import TransferTimes
from evenkeel.services.detector.domain.links.whose import Explanation, explain
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.probes.standing import TieStanding
from evenkeel.services.detector.domain.probes.suspicion import SUSPECT_AT
from evenkeel.services.detector.domain.scan.level import INTERVAL

REPUBLISH_AT = 0.07
"""Change of speed that is worth telling again, where noise lets it be known."""

PROBE_SECONDS = 0.001
"""A transfer over a healthy link; a suspicion costs six: three times there and back."""

USUAL_PROBE_BYTES = 1 << 16
"""Where transfers do not get longer with their bytes, as far as is known."""

SMALLEST_PROBE_BYTES, LARGEST_PROBE_BYTES = 1 << 12, 1 << 22

_DECISIVE_NATS = 4.0
_LONGEST_DOUBT = 8
_FEWEST_TO_HEAL = 3
_FRAMES_TO_LEARN = 3


@dataclass(slots=True, eq=False, kw_only=True)
class LinkWatch:
    """Watches all links and groups of one job.

    Args:
        iterations_per_false_alarm: The operator's budget for the job.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    _times: TransferTimes = field(default_factory=TransferTimes)
    _cost: TransferCost = field(default_factory=TransferCost)
    _rows: LinkRows = field(init=False)
    # Frames for which it has been open whose fault it is that a row is slow.
    _doubts: dict[int, int] = field(default_factory=dict)
    _complaints: list[LinkComplaint] = field(default_factory=list)
    _num_frames: int = 0
    _new_epoch: bool = False

    def __post_init__(self) -> None:
        self._rows = LinkRows(self.iterations_per_false_alarm)

    def begin_epoch(self) -> None:
        """The layout changed."""
        self._new_epoch = True

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is known was by then."""
        self._rows.go_back(iteration)
        for complaint in self._complaints:
            complaint.first_iteration = min(complaint.first_iteration, iteration)
            complaint.healing_since = min(complaint.healing_since, iteration)

    def observe(self, frame: FrameObservation) -> list[LinkFinding]:
        """Takes one plain frame and returns what is to be told."""
        transfers = self._times.measure(frame)
        if transfers is None:
            return []
        if self._new_epoch:
            self._forget_others(self._rows.begin_epoch(transfers.ties))
        rows = self._rows.locate(transfers.ties)
        first_of_epoch, self._new_epoch = self._new_epoch, False
        operations = rows[transfers.tie_of]
        usable = np.isfinite(transfers.seconds) & (transfers.num_bytes >= 0)
        classes = self._rows.class_of[operations]
        self._num_frames += 1
        if self._num_frames <= _FRAMES_TO_LEARN:
            self._cost.learn(classes[usable], transfers.num_bytes[usable], transfers.seconds[usable])
            return []
        if first_of_epoch:
            return []
        expected = self._cost.expect(classes, transfers.num_bytes)
        log_ratios, usual_seconds = transfers.log_ratios(expected, usable)
        told, was_slow = np.isfinite(log_ratios), self._rows.slow
        self._rows.observe(frame.iteration, rows[told], log_ratios[told])
        seconds = np.full(len(self._rows), np.nan)
        seconds[rows] = usual_seconds * np.exp(log_ratios)
        found = self._take(was_slow, seconds)
        calm = usable & self._rows.calm[operations]
        self._cost.learn(classes[calm], transfers.num_bytes[calm], transfers.seconds[calm])
        return found

    def standing(self) -> TieStanding | None:
        """Where links and groups stand; None when none of them is worth a question."""
        links, evidence = self._rows, self._rows.evidence
        if not links.slow.any() and not (evidence >= SUSPECT_AT).any():
            return None
        faults, endpoints = np.full((2, len(links)), -1, dtype=np.int64)
        since = np.where(links.slow, links.since, -1)
        for number, complaint in enumerate(self._complaints):
            rows = sorted(complaint.rows)
            faults[rows], since[rows] = number, complaint.first_iteration
            endpoints[rows] = complaint.ranks[0] if len(complaint.ranks) == 1 else -1
        num_bytes = self._cost.bytes_within(PROBE_SECONDS)
        num_bytes = np.where(np.isfinite(num_bytes), num_bytes, USUAL_PROBE_BYTES)
        num_bytes = np.clip(num_bytes, SMALLEST_PROBE_BYTES, LARGEST_PROBE_BYTES)
        return TieStanding(
            ties=links.ties,
            evidence=evidence,
            ill=links.slow | (faults >= 0),
            classes=links.class_of,
            faults=faults,
            endpoints=endpoints,
            since=since,
            num_bytes=num_bytes[links.class_of].astype(np.int64),
        )

    def _take(self, was_slow: Bools, seconds: Floats) -> list[LinkFinding]:
        """Tells recoveries at once; holds what became slow until it is clear whose fault it is."""
        found, slow = [], self._rows.slow
        for row in np.flatnonzero(was_slow & ~slow).tolist():
            self._doubts.pop(row, None)
            found += self._recover(row, int(self._rows.since[row]), seconds)
        for row in np.flatnonzero(slow & ~was_slow).tolist():
            mine = next((one for one in self._complaints if row in one.rows), None)
            if mine is None or (len(mine.ranks) > 1 and row not in mine.slow):
                self._doubts[row] = 0
            else:
                mine.slow.add(row)
                mine.healing_since = -1
        for complaint in list(self._complaints):
            if complaint.healing_since >= 0 and 2 * len(complaint.slow) <= len(complaint.rows):
                found += self._heal(complaint, seconds)
        if self._doubts:
            found += self._accuse_or_wait(seconds)
        for complaint in self._complaints:
            found += self._refine(complaint, seconds)
        return found

    def _accuse_or_wait(self, seconds: Floats) -> list[LinkFinding]:
        found, rows_of_rank = [], self._rows.rows_of_rank()
        iterations, residuals, strays = self._rows.iterations, self._rows.residuals, self._rows.strays
        for row in list(self._doubts):
            if row not in self._doubts:
                continue
            first = int(self._rows.since[row])
            since = residuals[:, iterations >= first]
            why = explain(row, ties=self._rows.ties, residuals=since, scales=strays, rows_of_rank=rows_of_rank)
            if why.lead_nats < _DECISIVE_NATS and self._doubts[row] < _LONGEST_DOUBT:
                self._doubts[row] += 1
                continue
            found.append(self._accuse(why, row, first, seconds))
        return found

    def _accuse(self, why: Explanation, row: int, first_iteration: int, seconds: Floats) -> LinkFinding:
        """Opens a complaint; earlier ones about a part of the same are taken up in it."""
        rows, slow = {*why.rows, row}, self._rows.slow
        for each in rows:
            self._doubts.pop(each, None)
        self._complaints = [one for one in self._complaints if not one.rows <= rows]
        complaint = LinkComplaint(
            ranks=why.ranks,
            rows=rows,
            slow={each for each in rows if slow[each]},
            published=float(np.exp(-max(why.level, 0.0))),
            first_iteration=first_iteration,
        )
        self._complaints.append(complaint)
        return self._finding(complaint, seconds, recovered=False)

    def _heal(self, complaint: LinkComplaint, seconds: Floats) -> list[LinkFinding]:
        """Most that shares a fault is healthy again: is the rest nearer to that than to its level, too?

        By itself a noisy row takes long to convince anybody.
        """
        found, since, levels = [], self._rows.iterations >= complaint.healing_since, self._rows.levels
        residuals = self._rows.residuals[:, since]
        for row in sorted(complaint.slow):
            newest = residuals[row][np.isfinite(residuals[row])]
            if len(newest) >= _FEWEST_TO_HEAL and float(np.median(newest)) < levels[row] / 2:
                self._rows.call_healthy(row)
                found += self._recover(row, complaint.healing_since, seconds)
        return found

    def _recover(self, row: int, first_iteration: int, seconds: Floats) -> list[LinkFinding]:
        found = []
        for complaint in [one for one in self._complaints if row in one.slow]:
            complaint.slow.discard(row)
            if complaint.healing_since < 0:
                complaint.healing_since = first_iteration
            if not complaint.slow:
                self._complaints.remove(complaint)
                complaint.published = 1.0
                complaint.first_iteration = first_iteration
                found.append(self._finding(complaint, seconds, recovered=True))
        return found

    def _refine(self, complaint: LinkComplaint, seconds: Floats) -> list[LinkFinding]:
        """The first estimate rests on few iterations, and what is slow may become slower."""
        slow = sorted(complaint.slow)
        now = float(np.exp(-np.median(self._rows.levels[slow])))
        error = float(np.median(self._rows.errors[slow]))
        if abs(now - complaint.published) < max(REPUBLISH_AT, INTERVAL * error * now):
            return []
        complaint.published = now
        return [self._finding(complaint, seconds, recovered=False)]

    def _finding(self, complaint: LinkComplaint, seconds: Floats, *, recovered: bool) -> LinkFinding:
        links, rows = self._rows, sorted(complaint.rows)
        residuals = links.residuals
        seen = [row for row in rows if np.isfinite(seconds[row])] or rows
        since = (links.iterations >= complaint.first_iteration)[None, :] & np.isfinite(residuals[rows])
        told: Floats = np.nan_to_num(seconds)
        row = max(seen, key=told.__getitem__)
        measured = float(told[row])
        newest, error = residuals[:, -1], float(np.median(links.errors[rows]))
        peers = np.flatnonzero((links.class_of == links.class_of[row]) & ~links.slow & np.isfinite(newest))
        peers = peers[~np.isin(peers, rows)]
        return LinkFinding(
            ranks=complaint.ranks,
            recovered=recovered,
            throughput=complaint.published,
            margin=INTERVAL * error * complaint.published,
            first_iteration=complaint.first_iteration,
            distance=max(float(links.levels[rows].max()), SMALLEST_SLOWDOWN) / error,
            num_observations=max(int(since.any(axis=0).sum()), 1),
            scale=float(np.median(links.scales[rows])),
            expected_seconds=measured * float(np.exp(-np.nan_to_num(newest[row]))),
            measured_seconds=measured,
            peers=float(np.exp(np.median(newest[peers]))) if len(peers) else 1.0,
            num_links=len(rows),
        )

    def _forget_others(self, kept: dict[int, int]) -> None:
        """Keeps what the new layout still uses, by its new rows, with what is known of it."""
        self._doubts = {}
        for complaint in self._complaints:
            complaint.rows = {kept[row] for row in complaint.rows if row in kept}
            complaint.slow = {kept[row] for row in complaint.slow if row in kept}
        self._complaints = [one for one in self._complaints if one.slow]
