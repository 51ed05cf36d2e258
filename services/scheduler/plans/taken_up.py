"""Which levers of a plan hindsight is asked about."""

from evenkeel.planning.levers.migrate_stage import MigrateStage
from evenkeel.planning.levers.virtual_stages import VirtualStages
from evenkeel.planning.pipelined.virtual import has_orders
from evenkeel.planning.solution import Solution


def taken_up(solution: Solution) -> list[str]:
    """Levers that a plan pulls and does not only let go of.

    How far plans fell short under which ranks got several stages, or micro-batches routes, says nothing of one that
    ends these: it leads back to what the cost model was calibrated on before, and must not be held off by what drove
    the job away from where it is.

    Args:
        solution: The plan.
    """
    over = set()
    if not has_orders(solution.layout):
        over.add(VirtualStages.name)
    if not solution.layout.routes:
        over.add(MigrateStage.name)
    return [action.lever for action in solution.actions if action.lever not in over]
