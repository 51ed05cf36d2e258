"""Seconds of transfers and collectives counted from the last arrival, from both sides' stamps.

A transfer cannot start before both its ends are there, and its end is seen by the receiver. So it took no longer than
the receiver was in it, and no longer than since the sender entered it: it took the smaller of the two. The first needs
one clock only, the second the offset between two. In a collective the last to arrive is in it for the transfer alone:
the smallest of all members' durations, each on its own clock.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.clock_offsets import ClockOffsets
from services.detector.domain.observation import FrameObservation
from services.detector.domain.traffic import TrafficObservation
from services.detector.domain.transfer_plan import Tie, TransferPlan, plan_transfers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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

    ties: tuple[Tie, ...]
    tie_of: Ints
    upward: Bools
    seconds: Floats
    num_bytes: Floats


class TransferTimes:
    """Measures the transfers of one job, frame by frame, and keeps its nodes' clocks aligned."""

    def __init__(self) -> None:
        self._clocks = ClockOffsets()
        self._plan: TransferPlan | None = None
        self._known: tuple[object, ...] = ()

    def measure(self, frame: FrameObservation) -> Transfers | None:
        """The frame's transfers; None when its ranks measured none."""
        traffic = frame.traffic
        if traffic is None or not len(traffic.kinds):
            return None
        plan = self._plan_of(frame, traffic)
        transfers = self._transfer_seconds(plan, traffic)
        took = traffic.took_seconds[plan.collective_took]
        collectives = np.minimum.reduceat(took, plan.collective_starts) if len(took) else took
        first_of = plan.collective_took[plan.collective_starts]
        return Transfers(
            ties=plan.ties,
            tie_of=np.concatenate([plan.transfer_ties, plan.collective_ties]),
            upward=np.concatenate([plan.transfer_upward, np.ones(len(collectives), dtype=np.bool_)]),
            seconds=np.maximum(np.concatenate([transfers, collectives]), _SHORTEST_SECONDS),
            num_bytes=traffic.num_bytes[np.concatenate([plan.transfer_took, first_of])],
        )

    def _plan_of(self, frame: FrameObservation, traffic: TrafficObservation) -> TransferPlan:
        known = (traffic.structure(), frame.ranks.tobytes(), frame.nodes)
        if self._plan is None or known != self._known:
            self._plan, self._known = plan_transfers(traffic, frame.ranks, frame.nodes), known
        return self._plan

    def _transfer_seconds(self, plan: TransferPlan, traffic: TrafficObservation) -> Floats:
        if not len(plan.sent):
            return np.zeros(0)
        base = float(traffic.started_at_unix_seconds[traffic.owners].min())
        started = traffic.started_at_unix_seconds - base
        sent = started[plan.senders] + traffic.entered_seconds[plan.sent]
        took = traffic.took_seconds[plan.transfer_took]
        ended = started[plan.receivers] + traffic.entered_seconds[plan.received] + took
        apart = ended - sent
        crossing = np.flatnonzero(plan.transfer_node_pairs >= 0)
        if len(crossing):
            apart[crossing] -= self._offsets(plan, crossing, base, sent[crossing], apart[crossing])
        return np.minimum(took, apart)

    def _offsets(self, plan: TransferPlan, crossing: Ints, base: float, at: Floats, apart: Floats) -> Floats:
        """What the clocks of both ends put on each transfer between nodes."""
        pairs = plan.transfer_node_pairs[crossing]
        sign = np.where(plan.transfer_node_upward[crossing], 1.0, -1.0)
        rows = self._clocks.rows_of(list(plan.node_pairs))
        skews = self._clocks.skews(rows)[pairs]
        level = apart - sign * skews * at
        quickest = np.full((2, len(rows)), np.inf)
        np.minimum.at(quickest, (np.where(sign > 0, 0, 1), pairs), level)
        both = np.isfinite(quickest).all(axis=0)
        offsets = np.full(len(rows), np.nan)
        if both.any():
            offsets[both] = self._clocks.observe(base, rows[both], quickest[0, both], quickest[1, both])
        return np.asarray(sign * (offsets[pairs] + skews * at))

    def to_state(self) -> dict[str, Any]:
        """What was learned of the clocks; the plan is worked out again."""
        return self._clocks.to_state()

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._clocks.restore(state)
        self._plan, self._known = None, ()
