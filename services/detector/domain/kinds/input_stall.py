"""Ranks wait for their input: fetching or packing takes a part of the iteration that training should have had.

Input is not compute, so a stall never speaks against a device; it is reported with the ranks that had to wait.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look

_WINDOW = 12
_STALLS = 3
_WORTH_TELLING = 0.05
"""Input that takes this part of an iteration is a stall."""
_LEAST_LOST = 0.025
"""Stalls are told once they took this part of the last iterations: a busy machine's loader is late now and then."""
_CALM_TO_REARM = 48
_MOST_RANKS = 64

_Stall = tuple[int, int, float, tuple[int, ...]]


@dataclass(eq=False)
class InputStall(KindWatch):
    """Tells stalls once, until there were none for a while."""

    name = "input_stall"

    # Frames that are counted, and the newest stalls: number of the frame, iteration, share of it, ranks. A list: an
    # empty deque is as large as sixty-four entries.
    _num_seen: int = 0
    _stalls: list[_Stall] = field(default_factory=list)
    _num_calm: int = _CALM_TO_REARM

    def go_back(self, iteration: int) -> None:
        """Stalls were by then."""
        self._stalls = [(number, min(at, iteration), *rest) for number, at, *rest in self._stalls]  # type: ignore[misc]

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        frame = look.frame
        if frame.data_seconds is None or not np.count_nonzero(look.usable):
            return []
        wall = float(np.max(frame.wall_seconds[look.usable]))
        known = look.usable & np.isfinite(frame.data_seconds)
        shares = np.where(known, frame.data_seconds, 0.0) / max(wall, 1e-9)
        stalled = frame.ranks[shares > _WORTH_TELLING].tolist()
        self._num_seen += 1
        stalls = [each for each in self._stalls if each[0] > self._num_seen - _WINDOW]
        if stalled:
            stalls.append((self._num_seen, frame.iteration, float(shares.max()), tuple(stalled[:_MOST_RANKS])))
        self._stalls = stalls
        armed = self._num_calm >= _CALM_TO_REARM
        num_seen = min(self._num_seen, _WINDOW)
        is_told = armed and len(stalls) >= _STALLS and _lost(stalls, num_seen) >= _LEAST_LOST
        if is_told or (stalls and not armed):
            self._num_calm = 0
        elif not armed:
            self._num_calm += 1
        return [_finding(stalls, num_seen)] if is_told else []


def _lost(stalls: list[_Stall], num_seen: int) -> float:
    """The part of the last ``num_seen`` iterations that went to stalls."""
    return sum(share for _, _, share, _ in stalls) / num_seen


def _finding(stalls: list[_Stall], num_seen: int) -> KindFinding:
    by_rank = Counter(rank for _, _, _, ranks in stalls for rank in ranks)
    ranks = tuple(sorted(rank for rank, count in by_rank.items() if 2 * count >= len(stalls)))
    # Where somebody else's input was late once, shortly before, these ranks' stall has not begun.
    theirs = [stall for stall in stalls if not ranks or not set(ranks).isdisjoint(stall[3])]
    first_iteration = theirs[0][1]
    share = float(np.mean([share for _, _, share, _ in theirs]))
    return KindFinding(
        kind=VerdictKind.INPUT_STALL,
        ranks=ranks,
        throughput=1 - _lost(stalls, num_seen),
        confidence=0.99,
        first_iteration=first_iteration,
        evidence=(
            Evidence(
                name="input",
                value=100 * share,
                unit="%",
                text=f"of the iteration, in {len(theirs)} of the last {num_seen}, first in iteration {first_iteration}",
            ),
            Evidence(
                name="ranks that waited for it", value=float(len(by_rank)), unit="ranks", text=_listed(sorted(by_rank))
            ),
        ),
        advice="input, not hardware: look at the storage and the loader's workers, and fetch further ahead",
    )


def _listed(ranks: list[int]) -> str:
    return "ranks " + ", ".join(str(rank) for rank in ranks[:16])
