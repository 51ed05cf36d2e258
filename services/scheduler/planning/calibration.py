"""How far predictions are from what was measured: the scale of later ones, and what a plan took for equal work."""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from layouts.layout import Layout
from services.scheduler.planning.cost_model import CostModel, Workload
from services.scheduler.planning.replay import usual_seconds

_MIN_CORRECTION, _MAX_CORRECTION = 0.5, 3.0
_HALVINGS = 7


def calibrated_correction(cost: CostModel, layout: Layout, throughputs: Mapping[int, float], measured: float) -> float:
    """Measured over predicted seconds of a layout in force, to correct later predictions with.

    Where it is known what the iterations were made of, each is compared with its own replay: so few iterations are
    enough, whatever their documents. Clipped to [0.5, 3]: beyond that the model, not its scale, is wrong, and scaling
    it would hide that.

    Args:
        cost: Predicts iterations.
        layout: Layout in force.
        throughputs: Of its ranks.
        measured: Median seconds per iteration, for where the recent ones are not known.
    """
    predicted = usual_seconds(CostModel(cost.model, cost.workload), layout, throughputs, layout.mix)
    if cost.workload.recent:
        measured = fmean([one.wall_seconds for one in cost.workload.recent])
    if not (predicted > 0.0 and measured > 0.0 and math.isfinite(measured)):
        return cost.correction
    return min(_MAX_CORRECTION, max(_MIN_CORRECTION, measured / predicted))


def without_stalls(cost: CostModel, layout: Layout, throughputs: Mapping[int, float]) -> Workload:
    """The workload with the transfer time under which the recent iterations come out as measured.

    What the detector takes for transfers is what neither compute nor exchange explains, and so has in it what pipelines
    stall behind larger micro-batches. A replay has those stalls already: with too long transfers it takes longer than
    was measured. Of more than was found for transfers nobody knows what it is: that is left to the correction.

    Args:
        cost: Predicts iterations; its workload has recent ones.
        layout: Layout in force.
        throughputs: Of its ranks.
    """
    workload = cost.workload
    measured = fmean([one.wall_seconds for one in workload.recent])

    def predicted(transfer_seconds: float) -> float:
        tried = CostModel(cost.model, replace(workload, transfer_seconds=transfer_seconds))
        return usual_seconds(tried, layout, throughputs, layout.mix)

    low, high = 0.0, workload.transfer_seconds
    if high == 0.0 or predicted(high) <= measured:
        return workload
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if predicted(middle) <= measured:
            low = middle
        else:
            high = middle
    return replace(workload, transfer_seconds=low)


def for_equal_work(
    cost: CostModel, layout: Layout, throughputs: Mapping[int, float], planned_for: Workload | None, measured: float
) -> float:
    """Seconds that a plan's iterations took, for the work that the plan was predicted for.

    Documents differ from iteration to iteration, so that a handful of them are several per cent lighter or heavier than
    those before: that is no error of the prediction.

    Args:
        cost: Predicts iterations; its workload has those that ran under the plan.
        layout: The plan's.
        throughputs: That the plan was made for.
        planned_for: The workload when the plan was made; None = not known any more.
        measured: Median seconds per iteration, returned where it is not known what the iterations were made of.
    """
    recent = cost.workload.recent
    if planned_for is None or not planned_for.recent or not recent:
        return measured
    before = CostModel(cost.model, planned_for)
    after = CostModel(cost.model, replace(planned_for, recent=recent))
    planned, ran = (usual_seconds(each, layout, throughputs, layout.mix) for each in (before, after))
    return fmean([one.wall_seconds for one in recent]) * planned / ran
