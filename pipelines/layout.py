"""A pipeline plan as the layout of a job: devices become ranks, layers become blocks, orders stay what they are."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.pipelines.plan import Plan


def layout_of(plan: Plan, num_replicas: int = 1) -> Layout:
    """The layout under which an engine works as the plan says.

    Device d of replica r is rank ``r * devices + d``; devices that the plan leaves out are standbys. The case's layers
    are the model's blocks: its first one is the embedding, its last one the head.

    Args:
        plan: The plan; each of its devices is one rank.
        num_replicas: Replicas that all work like this.
    """
    num_devices = len(plan.orders)
    ranks = [range(r * num_devices, (r + 1) * num_devices) for r in range(num_replicas)]
    replicas = [replica_of(plan, [((rank,), (1,)) for rank in each]) for each in ranks]
    used = {rank for replica in replicas for rank in replica.ranks}
    return Layout(
        num_blocks=sum(plan.partition),
        replicas=tuple(replicas),
        standbys=tuple(rank for each in ranks for rank in each if rank not in used),
        interleavable=True,
    )


def replica_of(plan: Plan, cells: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Replica:
    """A replica that works as the plan says.

    Args:
        plan: The plan.
        cells: Ranks and shares of each of its devices.
    """
    borders = accumulate(plan.partition, initial=0)
    stages = tuple(
        Stage(first_block=first, stop_block=stop, ranks=cells[device][0], shares=cells[device][1])
        for (first, stop), device in zip(pairwise(borders), plan.placement, strict=True)
    )
    # A layout's cells are told from each other by their first stage, a plan's devices by their number.
    orders = tuple(plan.orders[device] for device in dict.fromkeys(plan.placement))
    num_micro_batches = 1 + max(turn.place for order in orders for turn in order)
    return Replica(stages=stages, num_micro_batches=num_micro_batches, orders=orders)
