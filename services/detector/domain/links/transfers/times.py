"""Seconds of transfers and collectives counted from the last arrival, from both sides' stamps.

A transfer cannot start before both its ends are there, and its end is seen by the receiver. So it took no longer than
the receiver was in it, and no longer than since the sender entered it: it took the smaller of the two. The first needs
one clock only, the second the offset between two. In a collective the last to arrive is in it for the transfer alone:
the smallest of all members' durations, each on its own clock.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.ties import Ties
from evenkeel.services.detector.domain.frames.traffic import TrafficObservation
from evenkeel.services.detector.domain.links.transfers.clocks import ClockOffsets
from evenkeel.services.detector.domain.links.transfers.matching import Places, TransferPlan, plan_transfers
from evenkeel.services.detector.domain.memory.state import DERIVED

_SHORTEST_SECONDS = 1e-6
_QUICK = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Operations of one iteration.

    Attributes:
        ties: What they went over; the same object as long as the channels are the same.
        tie_of: Index into ``ties`` of each operation.
        upward: From the lower to the higher rank; True for collectives.
        seconds: Counted from the last arrival; NaN where it cannot be known.
        num_bytes: Of each operation.
    """

    ties: Ties
    tie_of: Ints
    upward: Bools
    seconds: Floats
    num_bytes: Floats

    def log_ratios(self, expected: Floats, usable: Bools) -> tuple[Floats, Floats]:
        """Log of measured over expected seconds of each tie, and the expected seconds of one of its operations.

        In each direction one of the quick operations counts (the second of ten, by expected seconds), because what
        disturbs one only adds to it; then both directions together, so that an error in the alignment of two clocks,
        which adds to one what it takes from the other, cancels.

        Args:
            expected: What each costs on average in its class, seconds.
            usable: Operations to look at.

        Returns:
            One value for each tie; the ratio is NaN where it cannot be known.
        """
        num_ties = len(self.ties)
        segments = 2 * self.tie_of + self.upward
        quick, weights = np.full((2, 2 * num_ties), np.nan)
        which, value, weight = _weighted_quantiles(
            segments[usable], self.seconds[usable] / expected[usable], expected[usable]
        )
        quick[which], weights[which] = value, weight
        quick, weights = quick.reshape(num_ties, 2), weights.reshape(num_ties, 2)
        there = np.isfinite(quick)
        enough = np.where(self.ties.crossing_pairs, there.all(axis=1), there.any(axis=1))
        total = np.where(there, weights, 0.0).sum(axis=1)
        measured = np.where(there, quick * weights, 0.0).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratios = np.log(np.where(enough, measured / total, np.nan))
        return log_ratios, total / np.maximum(there.sum(axis=1), 1)


@dataclass(slots=True, eq=False)
class TransferTimes:
    """Measures the transfers of one job, frame by frame, and keeps its nodes' clocks aligned."""

    _clocks: ClockOffsets = field(default_factory=ClockOffsets)
    _plan: TransferPlan | None = field(default=None, metadata=DERIVED)
    _known: tuple[object, ...] = field(default=(), metadata=DERIVED)

    def measure(self, frame: FrameObservation) -> Transfers | None:
        """The frame's transfers; None when its ranks measured none."""
        traffic = frame.traffic
        if traffic is None or not len(traffic.kinds):
            return None
        plan = self._plan_of(frame, traffic)
        transfers = self._transfer_seconds(plan, traffic)
        took, (collective_ties, starts) = traffic.took_seconds[plan.collective_took], plan.collectives
        collectives = np.minimum.reduceat(took, starts) if len(took) else took
        return Transfers(
            ties=plan.ties,
            tie_of=np.concatenate([plan.transfers[0], collective_ties]),
            upward=np.concatenate([plan.transfers[1] > 0, np.ones(len(collectives), dtype=np.bool_)]),
            seconds=np.maximum(np.concatenate([transfers, collectives]), _SHORTEST_SECONDS),
            num_bytes=traffic.num_bytes[np.concatenate([plan.transfers[8], plan.collective_took[starts]])],
        )

    def _plan_of(self, frame: FrameObservation, traffic: TrafficObservation) -> TransferPlan:
        known = traffic.structure(frame.ranks), frame.nodes
        if self._plan is None or known != self._known:
            self._plan, self._known = plan_transfers(traffic, frame.ranks, frame.nodes), known
        return self._plan

    def _transfer_seconds(self, plan: TransferPlan, traffic: TrafficObservation) -> Floats:
        _, _, pairs, upward, senders, receivers, sent_stamps, received_stamps, took_stamps = plan.transfers
        if not len(pairs):
            return np.zeros(0)
        base = float(traffic.started_at_unix_seconds[traffic.owners].min())
        started = traffic.started_at_unix_seconds - base
        sent = started[senders] + traffic.entered_seconds[sent_stamps]
        took = traffic.took_seconds[took_stamps]
        ended = started[receivers] + traffic.entered_seconds[received_stamps] + took
        apart = ended - sent
        crossing = np.flatnonzero(pairs >= 0)
        if len(crossing):
            sign = np.where(upward[crossing] > 0, 1.0, -1.0)
            rows = self._clocks.rows_of(list(plan.node_pairs))
            apart[crossing] -= self._offsets(rows, pairs[crossing], sign, base, sent[crossing], apart[crossing])
        found: Floats = np.minimum(took, apart)
        return found

    def _offsets(self, rows: Ints, pairs: Places, sign: Floats, base: float, at: Floats, apart: Floats) -> Floats:
        """What the clocks of both ends put on each transfer between nodes."""
        skews = self._clocks.skews(rows)[pairs]
        level = apart - sign * skews * at
        quickest = np.full((2, len(rows)), np.inf)
        np.minimum.at(quickest, (np.where(sign > 0, 0, 1), pairs), level)
        both = np.isfinite(quickest).all(axis=0)
        offsets = np.full(len(rows), np.nan)
        if both.any():
            offsets[both] = self._clocks.observe(base, rows[both], quickest[0, both], quickest[1, both])
        return np.asarray(sign * (offsets[pairs] + skews * at))


def _weighted_quantiles(segments: Ints, values: Floats, weights: Floats) -> tuple[Ints, Floats, Floats]:
    """Segments that occur, a low weighted quantile of their values, and their mean weight."""
    if not len(segments):
        return segments, values, weights
    order = np.lexsort((values, segments))
    segments, values, weights = segments[order], values[order], weights[order]
    which, starts, counts = np.unique(segments, return_index=True, return_counts=True)
    sums = np.cumsum(weights)
    ends = sums[starts + counts - 1]
    before = sums[starts] - weights[starts]
    middle = np.searchsorted(sums, before + (ends - before) * _QUICK)
    middle = np.clip(middle, starts, starts + counts - 1)
    return which, values[middle], (ends - before) / counts
