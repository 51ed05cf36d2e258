"""Pauses that come by the clock: garbage collection, a logger, a checkpoint that nobody marked.

An iteration is a pause when it is much longer than the work in it explains (of the whole job), or when one rank's
compute stands out (of a rank). A clock gives them away: going back from the newest one, tick by tick, there is a pause
at nearly every tick, which chance does not do.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.kinds.jitter import FEWEST_TICKS, SHORTEST_PERIOD, slow_iterations
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.memory.newest import with_newest

_KEPT = 24
_WALLS = 48
_FEWEST_WALLS = 16
_SMALLEST_PAUSE = 0.05
_SPREADS = 8.0
_KEPT_SHARE = 0.95
_JOB = -1


@dataclass(eq=False)
class PeriodicPause(KindWatch):
    """Tells each rank's, or the job's, periodic pauses once, until their period changes."""

    name = "periodic_pause"

    # Of usual iterations the log of their length over their dearest work.
    _lengths: Floats = field(default_factory=lambda: np.zeros(0))
    # Of each rank: iteration, length relative to the work, last iteration.
    _pauses: dict[int, list[list[float]]] = field(default_factory=dict)
    _told: dict[int, int] = field(default_factory=dict)

    def begin_epoch(self) -> None:
        """Iterations take another time from now on."""
        self._lengths = self._lengths[:0]

    def go_back(self, iteration: int) -> None:
        """Pauses that may come again are forgotten: each is counted once."""
        before = {rank: [each for each in pauses if each[2] < iteration] for rank, pauses in self._pauses.items()}
        self._pauses = {rank: pauses for rank, pauses in before.items() if pauses}

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        if not look.plain:
            return []
        assert look.expected_seconds is not None
        iteration, touched = look.frame.iteration, []
        value = math.log(max(look.frame.wall_seconds.max(), 1e-9) / max(look.expected_seconds.max(), 1e-12))
        apart, is_long = self._distance(value)
        newest = _slow_entries(look)
        if look.some_ill:
            for rank in look.frame.ranks[look.ill].tolist():
                self._pauses.pop(rank, None)  # A device that is ill for a while has no pauses.
        for entry in newest:
            touched.append(int(look.frame.ranks[entry]))
            self._note(touched[-1], iteration, float(np.expm1(look.residuals[entry, -1])))
        # While a device is slow on and off, the job's long iterations are its own; what a rank's pause explains is not
        # the job's either.
        if not look.some_ill and not newest:
            self._lengths = with_newest(self._lengths, value, _WALLS)
            if is_long:
                touched.append(_JOB)
                self._note(_JOB, iteration, math.expm1(apart))
        return [finding for rank in touched if (finding := self._judge(rank, look)) is not None]

    def _distance(self, value: float) -> tuple[float, bool]:
        """How far an iteration is from the usual one, and whether it is much longer than its work explains."""
        if len(self._lengths) < _FEWEST_WALLS:
            return 0.0, False
        usual = float(np.median(self._lengths))
        spread = 1.4826 * float(np.median(np.abs(self._lengths - usual)))
        return value - usual, value - usual > max(_SMALLEST_PAUSE, _SPREADS * spread)

    def _note(self, rank: int, iteration: int, excess: float) -> None:
        known = self._pauses.get(rank, [])
        if known and iteration - known[-1][2] <= 1:
            known[-1][2] = float(iteration)  # One that goes on is counted once.
            return
        self._pauses[rank] = [*known[1 - _KEPT :], [float(iteration), excess, float(iteration)]]

    def _judge(self, rank: int, look: Look) -> KindFinding | None:
        pauses = np.array(self._pauses[rank])
        if len(pauses) < FEWEST_TICKS:
            return None
        period, hits, nats = _clock_of(pauses[:, 0])
        if nats < look.limit or abs(self._told.get(rank, 0) - period) <= max(1.0, 0.1 * period):
            return None
        self._told[rank] = period
        kept = pauses[hits]
        return _finding(rank, period, kept[:, 1], int(kept[0, 0]), nats)


def _slow_entries(look: Look) -> list[int]:
    """Healthy devices whose newest iteration stands out."""
    slow: list[int] = np.flatnonzero(slow_iterations(look.residuals[:, -1], look.residuals) & ~look.ill).tolist()
    return slow


def _clock_of(iterations: np.ndarray) -> tuple[int, np.ndarray, float]:
    """The period that best explains pauses, the pauses that keep it, and the evidence against chance, nats.

    Counted back from the newest pause: by chance each tick would meet a pause as often as any iteration does.
    """
    newest, length = iterations[-1], iterations[-1] - iterations[0] + 1
    usual = len(iterations) / length
    best: tuple[int, np.ndarray, float] = (0, np.zeros(0, dtype=np.int64), 0.0)
    periods = {int(newest - each) for each in iterations[-1 - FEWEST_TICKS : -1]}
    for period in sorted(each for each in periods if each >= SHORTEST_PERIOD):
        hits = np.flatnonzero((newest - iterations) % period == 0)
        # Before the first pause that keeps the clock there was none.
        ticks = (newest - iterations[hits[0]]) / period
        missed = max(ticks - (len(hits) - 1), 0.0)
        nats = (len(hits) - 1) * math.log(_KEPT_SHARE / usual) + missed * math.log((1 - _KEPT_SHARE) / (1 - usual))
        nats -= math.log(len(periods))
        if len(hits) >= FEWEST_TICKS and nats > best[2]:
            best = (period, hits, nats)
    return best


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
