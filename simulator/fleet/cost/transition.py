"""What going from one operation to another costs: the price rule of the planner, for operations with holes too."""

from evenkeel.layouts.model import ModelSpec
from evenkeel.planning.costs.price import Holding, Sizes, holdings_of
from evenkeel.simulator.fleet.operation.operation import Operation
from evenkeel.simulator.fleet.strategy import Costs


def _held(operation: Operation) -> dict[int, Holding]:
    return holdings_of([(stage,) for replica in operation.replicas for stage in replica if stage])


def transition_seconds(model: ModelSpec, old: Operation | None, new: Operation, costs: Costs) -> float:
    """Seconds of pause: building groups, and who receives most. A stopped job restarts."""
    if old is None:
        return costs.restart_seconds
    if old == new:
        return 0.0
    before, sizes = _held(old), Sizes(model)
    most = max((sizes.missing_bytes(held, before.get(rank)) for rank, held in _held(new).items()), default=0)
    return costs.transition.group_seconds + most / costs.transition.bytes_per_second


def rollback_seconds(at_seconds: float, costs: Costs) -> float:
    """Seconds of a restart from the last checkpoint: the restart, and the work since that checkpoint once more."""
    return costs.restart_seconds + at_seconds % costs.checkpoint_seconds
