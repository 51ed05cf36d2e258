"""Seconds of transfers and collectives counted from the last arrival, from both sides' stamps.

A transfer cannot start before both its ends are there, and its end is seen by the receiver. So it took no longer than
the receiver was in it, and no longer than since the sender entered it: it took the smaller of the two. The first needs
one clock only, the second the offset between two. In a collective the last to arrive is in it for the transfer alone:
the smallest of all members' durations, each on its own clock.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.traffic import TrafficObservation
from evenkeel.services.detector.domain.links.ties import Ties
from evenkeel.services.detector.domain.links.transfers.clocks import ClockOffsets
from evenkeel.services.detector.domain.links.transfers.matching import TransferPlan, plan_transfers
from evenkeel.services.detector.domain.memory.state import DERIVED

Places = npt.NDArray[np.int16] | npt.NDArray[np.int32]

_SHORTEST_SECONDS = 1e-6


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
