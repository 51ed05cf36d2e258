"""What makes true iterations differ from the planner's: links that are slow, operations that vary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evenkeel.layouts.layout import Stage

Floats = NDArray[np.float64]
_NUM_SAMPLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What holds at a moment.

    Attributes:
        links: Factor on transfers between two devices, the smaller one first; others 1.
        noise: Relative standard deviation of each forward and backward, log-normal.
        seed: Of the noise; the same conditions give the same noise.
    """

    links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    noise: float = 0.0
    seed: int = 0

    @property
    def is_ideal(self) -> bool:
        """True when the cost model's own answer holds."""
        return not self.links and self.noise <= 0.0

    def border_factor(self, one: Stage, other: Stage) -> float:
        """Factor on a transfer between two stages: shards send side by side, and the slowest pair decides."""
        slowest = 1.0
        for (a, b), factor in self.links.items():
            if (a in one.ranks and b in other.ranks) or (b in one.ranks and a in other.ranks):
                slowest = max(slowest, factor)
        return slowest


IDEAL = Conditions()


def noise_factors(rng: np.random.Generator, noise: float, num_samples: int) -> Floats:
    """Log-normal factors of mean 1."""
    sigma = float(np.sqrt(np.log1p(noise**2)))
    return rng.lognormal(-(sigma**2) / 2.0, sigma, num_samples)


def replica_seconds(
    stage_seconds: Sequence[tuple[float, float]],
    num_micro_batches: int,
    border_seconds: Sequence[float],
    *,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Floats:
    """Seconds of a replica under 1F1B, several iterations side by side when operations vary, else one.

    Step m runs, stage by stage, forward m and then backward ``m - (stages - 1 - s)``; that is each stage's own order.

    Args:
        stage_seconds: (forward, backward) of a micro-batch on each stage.
        num_micro_batches: The replica's quota.
        border_seconds: Of a transfer over each border, one less than stages.
        noise: Relative standard deviation of each operation.
        rng: Where noise comes from; needed when there is any.
    """
    count = _NUM_SAMPLES if noise > 0.0 else 1
    last = len(stage_seconds) - 1
    clocks = [np.zeros(count) for _ in stage_seconds]
    gradients = [np.zeros(count) for _ in range(last + 2)]

    def lasts(seconds: float) -> Floats | float:
        if noise <= 0.0:
            return seconds
        assert rng is not None
        return seconds * noise_factors(rng, noise, count)

    for step in range(num_micro_batches + last):
        arrival = np.zeros(count)
        for s, (forward, backward) in enumerate(stage_seconds):
            clock = clocks[s]
            if step < num_micro_batches:
                clock = np.maximum(arrival, clock) + lasts(forward)
                arrival = clock + (border_seconds[s] if s < last else 0.0)
            if 0 <= step - last + s < num_micro_batches:
                clock = np.maximum(gradients[s + 1], clock) + lasts(backward)
                gradients[s] = clock + (border_seconds[s - 1] if s else 0.0)
            clocks[s] = clock
    slowest: Floats = np.max(np.array(clocks), axis=0)
    return slowest
