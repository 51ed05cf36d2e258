"""Communication that became slow: from the stamps of a frame to what is told of whom.

Waiting is not transfer: a straggler delays whoever waits for it and no transfer, a slow link lengthens transfers and
no computation, so neither is taken for the other.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.level import INTERVAL_SCALES
from evenkeel.services.detector.domain.links.complaint import LinkChange, LinkComplaint, LinkFinding
from evenkeel.services.detector.domain.links.health import REFERENCE_OBSERVATIONS, LinkHealth
from evenkeel.services.detector.domain.links.tie_index import TieIndex
from evenkeel.services.detector.domain.links.transfers.cost import TransferCost
from evenkeel.services.detector.domain.links.transfers.ratios import log_ratios_of
from evenkeel.services.detector.domain.links.transfers.times import TransferTimes
from evenkeel.services.detector.domain.links.whose import Explanation, explain
from evenkeel.services.detector.domain.memory.state import DERIVED, GIVEN
from evenkeel.services.detector.domain.probes.desk import SUSPECT_AT
from evenkeel.services.detector.domain.probes.link_probes import LinkStanding
from evenkeel.services.detector.domain.probes.ring import GroupStanding

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

REPUBLISH_AT = 0.07
"""Change of speed that is worth telling again, where noise lets it be known."""

PROBE_SECONDS = 0.001
"""A transfer over a healthy link; a suspicion costs six: three times there and back."""

USUAL_PROBE_BYTES = 1 << 16
"""Where transfers do not get longer with their bytes, as far as is known."""

SMALLEST_PROBE_BYTES, LARGEST_PROBE_BYTES = 1 << 12, 1 << 22

# The budget is the devices' first: links together may raise a tenth of their false alarms.
_SHARE_OF_BUDGET = 10.0
_DECISIVE_NATS = 4.0
_LONGEST_DOUBT = 3
_REFINE_AFTER = (8, 24)
_REFINE_EVERY = 48
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
    _health: LinkHealth = field(init=False)
    _doubts: dict[int, tuple[int, LinkChange]] = field(default_factory=dict)
    _complaints: list[LinkComplaint] = field(default_factory=list)
    _index: TieIndex | None = field(default=None, metadata=DERIVED)
    _num_frames: int = 0
    _new_epoch: bool = False

    def __post_init__(self) -> None:
        self._health = LinkHealth(iterations_per_false_alarm=_SHARE_OF_BUDGET * self.iterations_per_false_alarm)

    def begin_epoch(self) -> None:
        """The layout changed."""
        self._new_epoch = True

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is known was by then."""
        self._health.bank.go_back(iteration)
        for row, (age, change) in self._doubts.items():
            self._doubts[row] = age, replace(change, first_iteration=min(change.first_iteration, iteration))
        for complaint in self._complaints:
            complaint.first_iteration = min(complaint.first_iteration, iteration)
            complaint.healing_since = min(complaint.healing_since, iteration)

    def observe(self, frame: FrameObservation) -> list[LinkFinding]:
        """Takes one plain frame and returns what is to be told."""
        transfers = self._times.measure(frame)
        if transfers is None:
            return []
        known = len(self._health.bank)
        rows = self._health.bank.locate(transfers.ties, num_to_reference=REFERENCE_OBSERVATIONS)
        if self._new_epoch:
            self._forget_others(rows)
            rows = self._health.bank.locate(transfers.ties, num_to_reference=REFERENCE_OBSERVATIONS)
        if self._new_epoch or known != len(self._health.bank):
            self._index = None
        first_of_epoch, self._new_epoch = self._new_epoch, False
        operations = rows[transfers.tie_of]
        usable = np.isfinite(transfers.seconds) & (transfers.num_bytes >= 0)
        classes = self._health.bank.class_of[operations]
        self._num_frames += 1
        if self._num_frames <= _FRAMES_TO_LEARN:
            self._cost.learn(classes[usable], transfers.num_bytes[usable], transfers.seconds[usable])
            return []
        if first_of_epoch:
            return []
        expected = self._cost.expect(classes, transfers.num_bytes)
        log_ratios, usual_seconds = log_ratios_of(transfers, expected, usable)
        told = np.isfinite(log_ratios)
        changes = self._health.observe(frame.iteration, rows[told], log_ratios[told])
        usual = np.full(len(self._health.bank), np.nan)
        usual[rows] = usual_seconds
        found = self._take(changes, usual)
        calm = usable & self._health.calm(operations)
        self._cost.learn(classes[calm], transfers.num_bytes[calm], transfers.seconds[calm])
        return found

    def standing(self) -> LinkStanding | None:
        """Where links and groups stand; None when none of them is worth a question."""
        bank, evidence = self._health.bank, self._health.evidence()
        if not bank.ill.any() and not (evidence >= SUSPECT_AT).any():
            self._index = None
            return None
        self._index = index = self._index or TieIndex(bank.ties)
        faults = np.full(len(bank), -1, dtype=np.int64)
        for number, complaint in enumerate(self._complaints):
            faults[sorted(complaint.rows)] = number
        num_bytes = self._cost.bytes_within(PROBE_SECONDS)
        num_bytes = np.where(np.isfinite(num_bytes), num_bytes, USUAL_PROBE_BYTES)
        num_bytes = np.clip(num_bytes, SMALLEST_PROBE_BYTES, LARGEST_PROBE_BYTES)
        bytes_of = num_bytes[bank.class_of].astype(np.int64)
        ill, pairs = bank.ill | (faults >= 0), index.links
        return LinkStanding(
            ends=index.ends,
            evidence=evidence[pairs],
            ill=ill[pairs],
            classes=bank.class_of[pairs].astype(np.int64),
            faults=faults[pairs],
            num_bytes=bytes_of[pairs],
            groups=self._group_standing(index, evidence, ill, faults, bytes_of),
        )

    def _group_standing(
        self, index: TieIndex, evidence: Floats, ill: Bools, faults: Ints, bytes_of: Ints
    ) -> GroupStanding:
        """Where the groups of more than two stand."""
        bank, rows = self._health.bank, index.groups
        since = bank.since[rows].astype(np.int64)
        endpoints = np.full(len(rows), -1, dtype=np.int64)
        for number, complaint in enumerate(self._complaints):
            mine = faults[rows] == number
            since[mine] = complaint.first_iteration
            endpoints[mine] = complaint.ranks[0] if len(complaint.ranks) == 1 else -1
        return GroupStanding(
            members=index.members,
            evidence=evidence[rows],
            ill=ill[rows],
            classes=bank.class_of[rows].astype(np.int64),
            faults=faults[rows],
            endpoints=endpoints,
            since=since,
            num_bytes=bytes_of[rows],
        )

    def _take(self, changes: list[LinkChange], usual: Floats) -> list[LinkFinding]:
        """Tells recoveries at once; holds what became slow until it is clear whose fault it is."""
        found = []
        for change in changes:
            if change.recovered:
                self._doubts.pop(change.row, None)
                found += self._recover(change, usual)
            else:
                mine = next((one for one in self._complaints if change.row in one.rows), None)
                if mine is None or (len(mine.ranks) > 1 and change.row not in mine.slow):
                    self._doubts[change.row] = (0, change)
                else:
                    mine.slow.add(change.row)
                    mine.healing_since = -1
        for complaint in list(self._complaints):
            if complaint.healing_since >= 0 and 2 * len(complaint.slow) <= len(complaint.rows):
                for row in sorted(complaint.slow):
                    healed = self._health.heal_too(row, complaint.healing_since)
                    found += [] if healed is None else self._recover(healed, usual)
        rows_of_rank = self._health.bank.rows_of_rank() if self._doubts else {}
        for row in list(self._doubts):
            if row not in self._doubts:
                continue
            age, change = self._doubts[row]
            why = explain(self._health.bank, row, rows_of_rank=rows_of_rank, first_iteration=change.first_iteration)
            if why.lead_nats < _DECISIVE_NATS and age < _LONGEST_DOUBT:
                self._doubts[row] = (age + 1, change)
                continue
            found.append(self._accuse(why, change, usual))
        for complaint in self._complaints:
            found += self._refine(complaint, usual)
        return found

    def _accuse(self, why: Explanation, change: LinkChange, usual: Floats) -> LinkFinding:
        """Opens a complaint; earlier ones about a part of the same are taken up in it."""
        slow = {row for row in why.rows if self._health.bank.ill[row]} | {change.row}
        for row in why.rows:
            self._doubts.pop(row, None)
        self._doubts.pop(change.row, None)
        rows = set(why.rows) | {change.row}
        self._complaints = [one for one in self._complaints if not one.rows <= rows]
        complaint = LinkComplaint(
            ranks=why.ranks,
            rows=rows,
            slow=slow,
            published=float(np.exp(-max(why.level, 0.0))),
            first_iteration=change.first_iteration,
        )
        self._complaints.append(complaint)
        return self._finding(complaint, change.nats, usual, recovered=False)

    def _recover(self, change: LinkChange, usual: Floats) -> list[LinkFinding]:
        found = []
        for complaint in [one for one in self._complaints if change.row in one.slow]:
            complaint.slow.discard(change.row)
            if complaint.healing_since < 0:
                complaint.healing_since = change.first_iteration
            if not complaint.slow:
                self._complaints.remove(complaint)
                complaint.published = 1.0
                complaint.first_iteration = change.first_iteration
                found.append(self._finding(complaint, change.nats, usual, recovered=True))
        return found

    def _refine(self, complaint: LinkComplaint, usual: Floats) -> list[LinkFinding]:
        """The first estimate rests on few iterations: looked at again once there are more, and then seldom."""
        complaint.num_frames += 1
        if complaint.num_frames not in _REFINE_AFTER and complaint.num_frames % _REFINE_EVERY:
            return []
        bank, rows = self._health.bank, sorted(complaint.slow)
        level = float(np.median([self._health.refined_level(row) for row in rows]))
        now = float(np.exp(-max(level, 0.0)))
        if abs(now - complaint.published) < max(REPUBLISH_AT, float(np.median(bank.scale[rows])) * now):
            return []
        complaint.published = now
        return [self._finding(complaint, 0.0, usual, recovered=False)]

    def _finding(self, complaint: LinkComplaint, nats: float, usual: Floats, *, recovered: bool) -> LinkFinding:
        bank = self._health.bank
        rows = sorted(complaint.rows)
        seen = [row for row in rows if np.isfinite(usual[row])] or rows
        since = (bank.iterations >= complaint.first_iteration)[None, :] & np.isfinite(bank.residuals[rows])
        count = max(int(since.any(axis=0).sum()), 1)
        scale = float(np.median(bank.scale[rows]))
        # What it would take as before: what the class pays for these bytes, times what this row has always been off it.
        row = max(seen, key=lambda one: float(np.nan_to_num(usual[one])))
        expected = float(np.nan_to_num(usual[row]) * np.exp(bank.reference[row] + bank.offset[row]))
        peers = np.flatnonzero((bank.class_of == bank.class_of[row]) & ~bank.ill & np.isfinite(bank.residuals[:, -1]))
        peers = peers[~np.isin(peers, rows)]
        return LinkFinding(
            ranks=complaint.ranks,
            recovered=recovered,
            throughput=complaint.published,
            margin=INTERVAL_SCALES * scale / float(np.sqrt(count)) * complaint.published,
            first_iteration=complaint.first_iteration,
            nats=nats,
            num_observations=count,
            scale=scale,
            expected_seconds=expected,
            measured_seconds=expected * float(np.exp(np.nan_to_num(bank.residuals[row, -1]))),
            peers=float(np.exp(np.median(bank.residuals[peers, -1]))) if len(peers) else 1.0,
            num_links=len(rows),
        )

    def _forget_others(self, rows: Ints) -> None:
        """Keeps what the new layout still uses, with what is known of it."""
        numbered = {int(row): place for place, row in enumerate(rows)}
        self._health.bank.keep(rows)
        self._health.begin_epoch()
        self._doubts = {}
        kept = []
        for complaint in self._complaints:
            complaint.rows = {numbered[row] for row in complaint.rows if row in numbered}
            complaint.slow = {numbered[row] for row in complaint.slow if row in numbered}
            if complaint.slow:
                kept.append(complaint)
        self._complaints = kept
