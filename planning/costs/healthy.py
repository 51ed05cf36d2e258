"""What a job takes while every device is healthy."""

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.cost_model import CostModel


def healthy_seconds(cost: CostModel, home: Layout, schedule: str | None = None) -> float:
    """Seconds per iteration of a layout with every device healthy; replicas that are alike are looked at once.

    Args:
        cost: Predicts iterations.
        home: The layout.
        schedule: Another schedule than the layout's.
    """
    schedule = schedule or home.schedule
    kinds = {
        (tuple([(s.stop_block, s.shares) for s in replica.stages]), replica.num_micro_batches): replica
        for replica in home.replicas
    }
    return cost.total(
        max(
            [
                cost.makespan(kind.stages, kind.num_micro_batches, dict.fromkeys(kind.ranks, 1.0), schedule)
                for kind in kinds.values()
            ]
        ),
        cost.gradients.seconds([replica.stages for replica in home.replicas]),
    )
