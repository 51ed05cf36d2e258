"""What a device must hold under a layout: weights, gradients, optimizer state, live activations of the schedule."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from evenkeel.layouts.cut import shard_parts
from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Order
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.schedules import live_activations, most_live, routed_program


def replica_peaks(
    model: ModelSpec,
    replica: Replica,
    scale: float = 1.0,
    schedule: str = "1f1b",
    live_at: Sequence[int] | None = None,
) -> tuple[float, ...]:
    """Bytes of the fullest device of each stage of a replica; of a replica with orders, of each cell.

    Gradients are taken to be as large as weights. Under 1F1B stage s of p holds the activations of p - s micro-batches
    at a time, or of all that there are, and with a split backward those of p.

    Args:
        model: Sizes of the blocks.
        replica: Its stages and quota.
        scale: Size of its largest micro-batches, 1 = as registered.
        schedule: Name of the schedule.
        live_at: Micro-batches whose activations each stage holds at a time; None = as the schedule has it.
    """
    if replica.orders:
        moments = [_live(order, cell) for order, cell in zip(replica.orders, replica.cells, strict=True)]
    else:
        num_stages, quota = len(replica.stages), replica.num_micro_batches
        live = live_at or [live_activations(schedule, s, num_stages, quota) for s in range(num_stages)]
        moments = [{(each,)} for each in live]
    return tuple(
        _cell_peak(model, [replica.stages[s] for s in cell], at, scale)
        for cell, at in zip(replica.cells, moments, strict=True)
    )


def activation_peak(model: ModelSpec, replica: Replica, schedule: str = "1f1b") -> float:
    """Most activations that the ranks of a stage or cell of a replica hold together at a time.

    Bytes; of blocks whose activations nobody has told, each micro-batch counts one.
    """
    return max(replica_peaks(_activations_only(model), replica, schedule=schedule))


@lru_cache(maxsize=16)
def _activations_only(model: ModelSpec) -> ModelSpec:
    blocks = [
        replace(block, parameter_bytes=0, optimizer_bytes=0, activation_bytes=block.activation_bytes or 1, max_width=1)
        for block in model.blocks
    ]
    return replace(model, blocks=tuple(blocks))


def _live(order: Order, cell: Sequence[int]) -> set[tuple[int, ...]]:
    """Micro-batches whose activations each stage of a cell holds, at every moment."""
    live, moments = dict.fromkeys(cell, 0), set()
    for turn in order:
        if turn.op is Op.FORWARD:
            live[turn.stage] += 1
            moments.add(tuple(live.values()))
        elif turn.op is not Op.BACKWARD_INPUT:
            live[turn.stage] -= 1
    return moments


def _cell_peak(model: ModelSpec, stages: Sequence[Stage], moments: Collection[tuple[int, ...]], scale: float) -> float:
    """Bytes of the fullest device of a cell when it holds most."""
    shares = stages[0].shares
    always = [0.0] * len(shares)
    each = [[0.0] * len(shares) for _ in stages]  # activations of one micro-batch
    for activations, stage in zip(each, stages, strict=True):
        sizes: dict[int, tuple[float, float]] = {}
        for cost in model.blocks[stage.first_block : stage.stop_block]:
            held, live = sizes.get(cost.max_width, (0.0, 0.0))
            sizes[cost.max_width] = held + cost.held_bytes(0), live + cost.activation_bytes * scale
        for width, (held, live) in sizes.items():
            for t, part in enumerate(shard_parts(width, shares)):
                always[t] += part * held
                activations[t] += part * live
    return max(
        always[t] + max([sum(n * row[t] for n, row in zip(live, each, strict=True)) for live in moments], default=0.0)
        for t in range(len(shares))
    )


def hosts_peak(model: ModelSpec, layout: Layout, scale: float) -> float:
    """Bytes of the fullest device of the replicas that run stages of other ones' micro-batches; 0 without routes.

    Args:
        model: Sizes of the blocks.
        layout: Layout.
        scale: Size of its largest micro-batches, 1 = as registered.
    """
    return max(
        [
            max(replica_peaks(model, layout.replicas[d], scale, layout.schedule, live_at))
            for d, live_at in _held_by_hosts(layout).items()
        ],
        default=0.0,
    )


def most_held(layout: Layout) -> int:
    """Micro-batches whose activations a stage that hosts guests holds at a time, at most; 0 without routes."""
    return max([max(live_at) for live_at in _held_by_hosts(layout).values()], default=0)


def _held_by_hosts(layout: Layout) -> dict[int, list[int]]:
    """Micro-batches that each stage of each host holds at a time."""
    paths = Paths(layout)
    return {
        d: [most_live(routed_program(layout, paths, d, s)) for s in range(len(layout.replicas[d].stages))]
        for d in sorted({route.replica for route in layout.routes})
    }
