"""What makes true iterations differ from the planner's: links that are slow, operations that vary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.layouts.layout import Stage
from evenkeel.layouts.programs.execution import Receiver, times
from evenkeel.layouts.programs.instructions import Instruction, Op, Program
from evenkeel.layouts.programs.schedules import stage_programs
from evenkeel.planning.costs.links import SlowLink, border_factors

Floats = NDArray[np.float64]
_NUM_SAMPLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What holds at a moment.

    Attributes:
        links: Slow ones between two devices; others are as the cost model says.
        noise: Relative standard deviation of each forward and backward, log-normal.
        seed: Of the noise; the same conditions give the same noise.
    """

    links: tuple[SlowLink, ...] = ()
    noise: float = 0.0
    seed: int = 0

    @property
    def is_ideal(self) -> bool:
        """True when the cost model's own answer holds."""
        return not self.links and self.noise <= 0.0

    def border_factor(self, one: Stage, other: Stage) -> float:
        """Factor on a transfer between two stages: shards send side by side, and the slowest pair decides."""
        return border_factors(self.links, (one, other))[0]

    def group_factor(self, stage: Stage) -> float:
        """Factor on the collectives of a stage's shards."""
        return max([link.factor for link in self.links if set(link.ranks) <= set(stage.ranks)], default=1.0)

    def between_replicas(self, replicas: Sequence[Sequence[Stage | None]]) -> float:
        """Factor on the exchange of gradients: links between devices that hold the same blocks in two replicas."""
        if not self.links:
            return 1.0
        held = {
            rank: (d, stage) for d, stages in enumerate(replicas) for stage in stages if stage for rank in stage.ranks
        }
        slowest = 1.0
        for link in self.links:
            a, b = link.ranks
            if a in held and b in held and held[a][0] != held[b][0]:
                one, other = held[a][1], held[b][1]
                if one.first_block < other.stop_block and other.first_block < one.stop_block:
                    slowest = max(slowest, link.factor)
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

    Args:
        stage_seconds: (forward, backward) of a micro-batch on each stage.
        num_micro_batches: The replica's quota.
        border_seconds: Of a transfer over each border, one less than stages.
        noise: Relative standard deviation of each operation.
        rng: Where noise comes from; needed when there is any.
    """
    programs = stage_programs("1f1b", len(stage_seconds), num_micro_batches)

    def seconds_of(s: int, one: Instruction) -> float:
        return stage_seconds[s][one.op is not Op.FORWARD]

    def border_of(s: int, one: Instruction) -> float:
        return border_seconds[s if one.op is Op.SEND_ACTIVATION else s - 1]

    return last_ends(programs, seconds_of, border_of, noise=noise, rng=rng)


def last_ends(
    programs: Sequence[Program],
    seconds_of: Callable[[int, Instruction], float],
    transfer_seconds: Callable[[int, Instruction], float],
    receiver_of: Receiver | None = None,
    *,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Floats:
    """When programs are through (:func:`evenkeel.layouts.programs.execution.times`), of several iterations at once.

    Args:
        programs: Of each place.
        seconds_of: Of each computing instruction, without noise.
        transfer_seconds: Of each send.
        receiver_of: Who receives what a place sends.
        noise: Relative standard deviation of each operation.
        rng: Where noise comes from; needed when there is any.
    """
    if noise <= 0.0:
        found = times(programs, seconds_of, transfer_seconds, receiver_of)
        return np.array([max(place.end_seconds for place in found)])
    assert rng is not None

    def varied(place: int, one: Instruction) -> float:
        return seconds_of(place, one) * noise_factors(rng, noise, _NUM_SAMPLES)  # type: ignore[return-value]

    found = times(programs, varied, transfer_seconds, receiver_of, later=np.maximum)
    ends: Floats = np.maximum.reduce([np.broadcast_to(place.end_seconds, _NUM_SAMPLES) for place in found])
    return ends
