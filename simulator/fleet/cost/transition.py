"""What going from one operation to another costs: the price rule of the planner, for operations with holes too."""

from evenkeel.layouts.cut import cut
from evenkeel.layouts.layout import Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.simulator.fleet.operation.operation import Operation
from evenkeel.simulator.fleet.strategy import Costs


def _held(operation: Operation) -> dict[int, tuple[Stage, int]]:
    return {
        rank: (stage, t)
        for replica in operation.replicas
        for stage in replica
        if stage
        for t, rank in enumerate(stage.ranks)
    }


def _interval(width: int, stage: Stage, t: int) -> tuple[float, float]:
    if width <= 1:
        return 0.0, 1.0
    borders = cut(width, 1, stage.shares)
    return borders[t] / width, borders[t + 1] / width


def _missing_bytes(model: ModelSpec, new: tuple[Stage, int], old: tuple[Stage, int] | None) -> float:
    if old is not None and (old[1], old[0].first_block, old[0].stop_block, old[0].shares) == (
        new[1],
        new[0].first_block,
        new[0].stop_block,
        new[0].shares,
    ):
        return 0.0
    missing = 0.0
    for block in range(new[0].first_block, new[0].stop_block):
        cost = model.blocks[block]
        start, stop = _interval(cost.max_width, *new)
        fraction = stop - start
        if old is not None and old[0].first_block <= block < old[0].stop_block:
            old_start, old_stop = _interval(cost.max_width, *old)
            fraction -= max(0.0, min(stop, old_stop) - max(start, old_start))
        missing += fraction * (cost.parameter_bytes + cost.optimizer_bytes)
    return missing


def transition_seconds(model: ModelSpec, old: Operation | None, new: Operation, costs: Costs) -> float:
    """Seconds of pause: building groups, and who receives most. A stopped job restarts."""
    if old is None:
        return costs.restart_seconds
    if old == new:
        return 0.0
    before = _held(old)
    most = max((_missing_bytes(model, held, before.get(rank)) for rank, held in _held(new).items()), default=0.0)
    return costs.transition.group_seconds + most / costs.transition.bytes_per_second


def rollback_seconds(at_seconds: float, costs: Costs) -> float:
    """Seconds of a restart from the last checkpoint: the restart, and the work since that checkpoint once more."""
    return costs.restart_seconds + at_seconds % costs.checkpoint_seconds
