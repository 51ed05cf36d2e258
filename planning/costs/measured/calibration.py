"""How far predictions are from what was measured: the scale of later ones, and what a plan took for equal work."""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.measured.replay import Replay

_MIN_CORRECTION, _MAX_CORRECTION = 0.5, 3.0
_HALVINGS = 10
_KNOWN_ITERATIONS = 8.0
_LARGEST_PART = 0.5
_INSTANT_SECONDS = 1e-6
# Less than one transfer in the longest path is rounding.
_ONE = 0.5


def calibrated_correction(cost: CostModel, layout: Layout, throughputs: Mapping[int, float], measured: float) -> float:
    """Measured over predicted seconds of a layout in force, to correct later predictions with.

    Where it is known what the iterations were made of, each is compared with its own replay: so few iterations are
    enough, whatever their documents. The noise of a handful is no scale yet: what was known before counts like eight.
    Clipped to [0.5, 3]: beyond that the model, not its scale, is wrong, and scaling
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
        weight = _weight_of(len(cost.workload.recent))
        ratio = cost.correction ** (1.0 - weight) * ratio**weight
    else:
        predicted = Replay(plain).seconds(layout, throughputs)
        if not (predicted > 0.0 and measured > 0.0 and math.isfinite(measured)):
            return cost.correction
        ratio = measured / predicted
    return min(_MAX_CORRECTION, max(_MIN_CORRECTION, ratio))


def with_transfers(cost: CostModel, layout: Layout, throughputs: Mapping[int, float]) -> Workload:
    """The workload with the transfer time under which the recent iterations come out as measured.

    A replay has what pipelines stall behind larger micro-batches, whatever stages the ranks have; what it lacks lies
    between passes of different ranks. Transfers that would take more than half of an iteration are not believed: of
    what is beyond nobody knows what it is, and it is left to the correction. Where no rank sends to another the
    workload stays as it is.

    Args:
        cost: Predicts iterations; its workload has recent ones.
        layout: Layout in force.
        throughputs: Of its ranks.
    """
    workload = cost.workload

    def replay(transfer_seconds: float) -> Replay:
        tried = replace(workload, transfer_seconds=transfer_seconds)
        return Replay(CostModel(cost.model, tried), layout.mix)

    without = replay(0.0).slowest(layout, throughputs)
    in_line = float((replay(_INSTANT_SECONDS).slowest(layout, throughputs) - without).mean()) / _INSTANT_SECONDS
    if in_line < _ONE:
        return workload
    low, high = 0.0, _LARGEST_PART * median([one.wall_seconds for one in workload.recent]) / in_line
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if replay(middle).usual_ratio(layout, throughputs) < 1.0:
            high = middle
        else:
            low = middle
    return replace(workload, transfer_seconds=low, transfers_in_line=in_line)


def pooled(known: Workload | None, fresh: Workload) -> Workload:
    """The workload with what links, collectives and the fixed part take, from all layouts that the job has had so far.

    These are of the machines and not of the layout, and a layout that just began or a device that just became slow
    leaves only a handful of iterations to tell them from. What was known before counts like eight iterations. An
    iteration in which many transfers follow one another tells more precisely what one takes: it counts by their square.

    Args:
        known: What was known before; None = nothing.
        fresh: What the newest iterations say.
    """
    if known is None or not known.recent or not fresh.recent:
        return fresh
    num_fresh, weight = float(len(fresh.recent)), _weight_of(len(fresh.recent))
    both = {
        name: (1.0 - weight) * getattr(known, name) + weight * getattr(fresh, name)
        for name in ("exchange_seconds", "gradient_seconds", "fixed_seconds")
    }
    told, tells = known.transfers_in_line**2, fresh.transfers_in_line**2
    weight = num_fresh * tells / (num_fresh * tells + _KNOWN_ITERATIONS * told) if tells else 0.0
    both["transfer_seconds"] = (1.0 - weight) * known.transfer_seconds + weight * fresh.transfer_seconds
    both["transfers_in_line"] = math.sqrt((1.0 - weight) * told + weight * tells)
    return replace(fresh, **both)


def _weight_of(num_fresh: int) -> float:
    """Of what so many new iterations say, beside what was known before."""
    return num_fresh / (num_fresh + _KNOWN_ITERATIONS)


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
