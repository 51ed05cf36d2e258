"""What would have been: a replay asked about some of its operations at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.graph.replay import Replay
from evenkeel.numeric.arrays import Bools, Floats

STRAGGLING = 1.1
"""Slowdown from which a job counts as straggling (the paper's)."""

EXPLAINS = 0.5
"""Share from which something is named as a cause (the paper's)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A rank, a stage or a kind of operation.

    Attributes:
        name: Its number or name.
        slowdown: Of the ideal job when only this keeps its durations.
        share: Part of the job's slowdown that goes when only this becomes ideal.
    """

    name: str
    slowdown: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step, seconds: as recorded, replayed without the recording's gaps, and replayed with everybody ideal."""

    step: int
    observed_seconds: float
    replayed_seconds: float
    ideal_seconds: float


class Questions:
    """Asks a replay what explains its slowdown."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.observed_steps = replay.observed_seconds()
        self._replayed_steps, self._ideal_steps = replay.many_step_seconds([replay.actual, replay.ideal])
        self.replayed = float(self._replayed_steps.mean())
        self.ideal = float(self._ideal_steps.mean())

    def share_of(self, durations: Floats) -> float:
        """Part of the slowdown that goes with these durations; 0 where there is none to speak of."""
        return self._as_share(float(self._replay.step_seconds(durations).mean()))

    def share(self, fixed: Bools) -> float:
        """Part of the slowdown that goes when some operations become ideal."""
        return self.share_of(np.where(fixed, self._replay.ideal, self._replay.actual))

    def explains(self, suspects: Bools) -> bool:
        """Half of the slowdown goes when these operations become ideal, or they alone make the job straggle."""
        if not suspects.any():
            return False
        alone = float(self._replay.step_seconds(np.where(suspects, self._replay.actual, self._replay.ideal)).mean())
        return alone >= STRAGGLING * self.ideal or self.share(suspects) >= EXPLAINS

    def suspects(self, labels: npt.NDArray[Any], *, named: Sequence[Any] | None = None) -> tuple[Suspect, ...]:
        """Both questions about each group of operations, or only about those named; the slowest first."""
        replay = self._replay
        names = np.unique(labels) if named is None else named
        kept = replay.many_step_seconds(np.where(labels == name, replay.actual, replay.ideal) for name in names)
        fixed = replay.many_step_seconds(np.where(labels == name, replay.ideal, replay.actual) for name in names)
        found = [
            Suspect(
                name=str(name), slowdown=float(kept[row].mean()) / self.ideal, share=self._as_share(fixed[row].mean())
            )
            for row, name in enumerate(names)
        ]
        return tuple(sorted(found, key=lambda suspect: -suspect.slowdown))

    def steps(self) -> tuple[Step, ...]:
        """Each step."""
        columns = (self._replay.steps, self.observed_steps, self._replayed_steps, self._ideal_steps)
        return tuple(
            Step(step=int(step), observed_seconds=float(seen), replayed_seconds=float(again), ideal_seconds=float(best))
            for step, seen, again, best in zip(*columns, strict=True)
        )

    def _as_share(self, seconds: float) -> float:
        lost = self.replayed - self.ideal
        return float((self.replayed - seconds) / lost) if abs(lost) > 1e-9 * self.ideal else 0.0
