"""What a recovery iteration still has to do."""

from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.ranks.spread import spread_micro_batches
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """The rest of an iteration whose other micro-batches are in sums that survivors kept.

    Attributes:
        iteration: Iteration.
        kept: Micro-batches that are not run again.
        kept_loss: Their loss, summed over tokens.
        by_replica: Micro-batches that each replica of the new layout runs; a replica may have none.
        mix: Which documents they have.
    """

    iteration: int
    kept: tuple[int, ...]
    kept_loss: float
    by_replica: tuple[tuple[int, ...], ...]
    mix: Mix | None


def remainder_of(plan: SalvagePlan, layout: Layout) -> Remainder:
    """Spread what must be run again over the replicas of the new layout."""
    return Remainder(
        iteration=plan.iteration,
        kept=plan.kept,
        kept_loss=sum(plan.losses.values()),
        by_replica=spread_micro_batches(layout, plan.again),
        mix=plan.mix,
    )
