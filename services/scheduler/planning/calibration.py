"""How far predictions are from what was measured: the scale of later ones, and what a plan took for equal work."""

import math
from collections.abc import Mapping
from dataclasses import replace

from layouts.layout import Layout
from services.scheduler.planning.cost_model import CostModel, Workload
from services.scheduler.planning.replay import Replay

_MIN_CORRECTION, _MAX_CORRECTION = 0.5, 3.0
_HALVINGS = 7
_KNOWN_ITERATIONS = 8.0


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
    plain = CostModel(cost.model, cost.workload)
    if cost.workload.recent:
        ratio = Replay(plain, layout.mix).usual_ratio(layout, throughputs)
    else:
        predicted = plain.iteration_seconds(layout, throughputs)
        if not (predicted > 0.0 and measured > 0.0 and math.isfinite(measured)):
            return cost.correction
        ratio = measured / predicted
    return min(_MAX_CORRECTION, max(_MIN_CORRECTION, ratio))


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

    def is_too_long(transfer_seconds: float) -> bool:
        tried = CostModel(cost.model, replace(workload, transfer_seconds=transfer_seconds))
        return Replay(tried, layout.mix).usual_ratio(layout, throughputs) < 1.0

    low, high = 0.0, workload.transfer_seconds
    if high == 0.0 or not is_too_long(high):
        return workload
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if is_too_long(middle):
            high = middle
        else:
            low = middle
    return replace(workload, transfer_seconds=low)


def pooled(known: Workload | None, fresh: Workload) -> Workload:
    """The workload with what links, collectives and the fixed part take, from all layouts that the job has had so far.

    These are of the machines and not of the layout, and a layout that just began or a device that just became slow
    leaves only a handful of iterations to tell them from. What was known before counts like eight iterations.

    Args:
        known: What was known before; None = nothing.
        fresh: What the newest iterations say.
    """
    if known is None or not known.recent or not fresh.recent:
        return fresh
    weight = len(fresh.recent) / (len(fresh.recent) + _KNOWN_ITERATIONS)
    both = {
        name: (1.0 - weight) * getattr(known, name) + weight * getattr(fresh, name)
        for name in ("transfer_seconds", "exchange_seconds", "fixed_seconds")
    }
    return replace(fresh, **both)


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
    planned = Replay(CostModel(cost.model, planned_for), layout.mix).seconds(layout, throughputs)
    ran = Replay(CostModel(cost.model, replace(planned_for, recent=recent)), layout.mix)
    return planned * ran.usual_ratio(layout, throughputs)
