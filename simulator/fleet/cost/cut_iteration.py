"""What a death costs of the iteration that it cuts.

Systems that start it again lose what was done of it. An engine that keeps sums of gradients (docs/engine.md, "What a
failure costs of the iteration") runs again the micro-batches of the replica that lost somebody and what the others had
not finished when they parked: until the verdict they go on, up to the reduction, which needs everybody. Pure.

Taken as even: all replicas are equally far, and under 1F1B every step of a pipeline takes equally long. Not charged:
the two small all-gathers of a recovery, and sums that move between ranks.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from evenkeel.simulator.fleet.operation.operation import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class CutIteration:
    """An iteration that one death cut, or several before anybody answered.

    Attributes:
        operation: How the job ran.
        at_seconds: When the first of them died.
        fraction: Part of the iteration that was done then.
        iteration_seconds: How long it would have taken.
        dead: Devices that have died.
    """

    operation: Operation
    at_seconds: float
    fraction: float
    iteration_seconds: float
    dead: frozenset[int]

    @property
    def restarted_seconds(self) -> float:
        """Seconds lost when the iteration is done again from its start."""
        return self.fraction * self.iteration_seconds

    def remaining(self, now: float) -> float:
        """Micro-batches that somebody must still run when all park at ``now``."""
        waited = max(0.0, now - self.at_seconds) / self.iteration_seconds
        left = 1.0 - min(1.0, self.fraction + waited)
        found = 0.0
        for stages, quota in zip(self.operation.replicas, self.operation.quotas, strict=True):
            lost = any(stage and not self.dead.isdisjoint(stage.ranks) for stage in stages)
            # What is in flight is lost with its activations: a pipeline less its last step.
            found += quota if lost else min(quota, left * (quota + len(stages) - 1))
        return found

    def kept_seconds(self, now: float, following: Operation, following_seconds: float) -> float:
        """Seconds lost when survivors keep their sums, against going on where the death came.

        Below 0 when they got further while everybody waited for the verdict than the death costs.

        Args:
            now: Moment at which they park.
            following: How the job goes on.
            following_seconds: Its seconds per iteration.
        """
        total = sum(following.quotas)
        steps = max(quota + len(stages) - 1 for stages, quota in zip(following.replicas, following.quotas, strict=True))
        remaining = self.remaining(now)
        longest = 0
        for stages, quota in zip(following.replicas, following.quotas, strict=True):
            share = math.ceil(remaining * quota / total - 1e-9)
            longest = max(longest, share + len(stages) - 1 if share else 0)
        return following_seconds * (longest / steps - (1.0 - self.fraction))


def cut_by(
    earlier: CutIteration | None,
    operation: Operation,
    devices: Collection[int],
    at_seconds: float,
    fraction: float,
    iteration_seconds: float,
) -> CutIteration:
    """The iteration that a death cuts; one that is cut already only loses more of its devices."""
    if earlier is None or earlier.operation is not operation:
        return CutIteration(
            operation=operation,
            at_seconds=at_seconds,
            fraction=fraction,
            iteration_seconds=iteration_seconds,
            dead=frozenset(devices),
        )
    return replace(earlier, dead=earlier.dead | frozenset(devices))
