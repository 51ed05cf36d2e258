"""A pipeline plan as the layout of a job: devices become ranks, layers become blocks, orders stay what they are."""

from itertools import accumulate, pairwise

from layouts.layout import Layout, Replica, Stage
from layouts.orders import LETTERS, Turn
from pipelines.plan import Plan


def layout_of(plan: Plan, num_replicas: int = 1) -> Layout:
    """The layout under which an engine works as the plan says.

    Device d of replica r is rank ``r * devices + d``; devices that the plan leaves out are standbys. The case's layers
    are the model's blocks: its first one is the embedding, its last one the head.

    Args:
        plan: The plan; each of its devices is one rank.
        num_replicas: Replicas that all work like this.
    """
    num_devices = len(plan.orders)
    borders = list(accumulate(plan.partition, initial=0))
    # Cells are told from each other by their first stage, devices by their number.
    devices = list(dict.fromkeys(plan.placement))
    orders = tuple(
        tuple([Turn(LETTERS[one.kind], one.micro_batch, one.stage) for one in plan.orders[device]])
        for device in devices
    )
    num_micro_batches = 1 + max(turn.place for order in orders for turn in order)
    replicas = []
    for r in range(num_replicas):
        stages = tuple(
            Stage(first_block=first, stop_block=stop, ranks=(r * num_devices + device,), shares=(1,))
            for (first, stop), device in zip(pairwise(borders), plan.placement, strict=True)
        )
        replicas.append(Replica(stages=stages, num_micro_batches=num_micro_batches, orders=orders))
    left_out = [d for d in range(num_devices) if d not in devices]
    standbys = tuple(r * num_devices + d for r in range(num_replicas) for d in left_out)
    return Layout(num_blocks=borders[-1], replicas=tuple(replicas), standbys=standbys, interleavable=True)
