"""Pauses that come by the clock: garbage collection, a logger, a checkpoint that nobody marked.

An iteration is a pause when it is much longer than the work in it explains (of the whole job), or when one rank's
compute stands out (of a rank). Equal gaps give them away: by chance each further gap falls within one iteration of the
others with a probability of three in the period.
"""

import math
from collections import deque
from typing import Any

import numpy as np

from services.detector.domain.kind import KindFinding, KindWatch, Look
from services.detector.domain.kinds.jitter import slow_iterations
from services.detector.domain.verdict import Evidence, VerdictKind

_KEPT = 24
_SHORTEST_PERIOD = 4
_FEWEST_PAUSES = 4
_WALLS = 48
_FEWEST_WALLS = 16
_SMALLEST_PAUSE = 0.05
_SPREADS = 8.0
_JOB = -1


class PeriodicPause(KindWatch):
    """Tells each rank's, or the job's, periodic pauses once, until their period changes."""

    name = "periodic_pause"

    def __init__(self) -> None:
        self._walls: deque[float] = deque(maxlen=_WALLS)
        self._pauses: dict[int, list[list[float]]] = {}
        self._told: dict[int, int] = {}

    def begin_epoch(self) -> None:
        """Iterations take another time from now on."""
        self._walls.clear()

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        if not look.plain:
            return []
        iteration, touched = look.frame.iteration, []
        newest = slow_iterations(look.residuals)[:, -1] & ~look.ill
        for entry in np.flatnonzero(newest).tolist():
            touched.append(int(look.frame.ranks[entry]))
            self._note(touched[-1], iteration, float(np.expm1(look.residuals[entry, -1])))
        excess = self._excess(look)
        if excess > 0:
            touched.append(_JOB)
            self._note(_JOB, iteration, excess)
        # What one rank's pauses explain is not the job's.
        if any(rank != _JOB for rank in touched):
            touched = [rank for rank in touched if rank != _JOB]
        return [finding for rank in touched if (finding := self._judge(rank, look)) is not None]

    def _note(self, rank: int, iteration: int, excess: float) -> None:
        self._pauses[rank] = [*self._pauses.get(rank, [])[1 - _KEPT :], [float(iteration), excess]]

    def _excess(self, look: Look) -> float:
        """How much longer than the work explains this iteration was, relative; 0 for an ordinary one."""
        assert look.expected_seconds is not None
        work = float(np.max(look.expected_seconds))
        value = math.log(max(float(np.max(look.frame.wall_seconds)), 1e-9) / max(work, 1e-12))
        known = np.array(self._walls)
        self._walls.append(value)
        if len(known) < _FEWEST_WALLS:
            return 0.0
        middle = float(np.median(known))
        spread = 1.4826 * float(np.median(np.abs(known - middle)))
        apart = value - middle
        return math.expm1(apart) if apart > max(_SMALLEST_PAUSE, _SPREADS * spread) else 0.0

    def _judge(self, rank: int, look: Look) -> KindFinding | None:
        pauses = np.array(self._pauses[rank])
        gaps = np.diff(pauses[:, 0])
        if len(gaps) < _FEWEST_PAUSES - 1:
            return None
        period = float(np.median(gaps[-_FEWEST_PAUSES:]))
        steady = np.abs(gaps - period) <= max(1.0, 0.05 * period)
        # The newest gaps in a row that keep the period.
        count = len(gaps) if steady.all() else int(np.argmin(steady[::-1]))
        if period < _SHORTEST_PERIOD or count < _FEWEST_PAUSES - 1:
            return None
        width = 2 * max(1.0, 0.05 * period) + 1
        nats = (count - 1) * math.log(max(period / width, 1.0)) if period > width else 0.0
        if nats < look.limit or abs(self._told.get(rank, 0) - period) <= max(1.0, 0.1 * period):
            return None
        self._told[rank] = round(period)
        kept = pauses[-(count + 1) :]
        return _finding(rank, period, kept[:, 1], int(kept[0, 0]), nats)

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        return {
            "walls": list(self._walls),
            "pauses": [[rank, pauses] for rank, pauses in sorted(self._pauses.items())],
            "told": sorted(self._told.items()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._walls = deque(state["walls"], maxlen=_WALLS)
        self._pauses = {int(rank): [[float(a), float(b)] for a, b in pauses] for rank, pauses in state["pauses"]}
        self._told = {int(rank): int(period) for rank, period in state["told"]}


def _finding(rank: int, period: float, excess: np.ndarray, first: int, nats: float) -> KindFinding:
    whose = "the whole job" if rank == _JOB else f"rank {rank}"
    lost = float(excess.mean()) / period
    advice = (
        "if it is a checkpoint or an evaluation, mark it; else look for a collective pause (logging, storage)"
        if rank == _JOB
        else "if it is garbage collection, freeze and collect on all ranks in the same iteration"
    )
    return KindFinding(
        kind=VerdictKind.PERIODIC_PAUSE,
        ranks=() if rank == _JOB else (rank,),
        throughput=1 / (1 + lost),
        confidence=0.99,
        first_iteration=first,
        evidence=(
            Evidence(name="period", value=period, unit="iterations", text=f"pauses of {whose}, {len(excess)} in a row"),
            Evidence(
                name="length", value=100 * float(excess.mean()), unit="%", text="longer than the work in it explains"
            ),
            Evidence(name="likelihood", value=nats, unit="nats", text="of equal gaps against chance"),
        ),
        advice=advice,
    )
