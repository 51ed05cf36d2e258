"""A lower bound that knows that layers are whole: no plan can be more even than the most even deal of layers.

It also knows the window of the model's last layer, its head, in large vocabularies many layers' work: before its
first F a device can only do F of its other layers, after its last B only their backward and weights, so a device
ends no sooner than ``F and B of the head + max(way to it, F of the others) + max(way back, their B and W and its W)``.
Solved by CP-SAT, so it is a bound at any time and tight when the search ends. Needs the extra ``pipelines`` (ortools).
"""

from collections import Counter
from itertools import accumulate

from ortools.sat.python import cp_model

from pipelines.bounds import lower_bound
from pipelines.case import Backward, Case, Layer

_SCALE = 1000
_Times = tuple[float, float, float]


def placement_bound(case: Case, *, seconds: float = 10.0) -> float:
    """The least possible time of the fullest device, with the start (fused: and end) that it cannot avoid.

    Raises:
        ValueError: The devices are unequal, or stages have costs of their own.
    """
    if not case.has_equal_devices or case.stage_bias is not None:
        raise ValueError("the placement bound is for equal devices and stages without costs of their own")
    layers, devices = case.layers, case.devices
    edges = [sum(_parts(case, layer)[:2]) if _is_fused(case) else _parts(case, layer)[0] for layer in layers]
    # The k-th device to begin has none of the first k layers; equal layers are told apart by nothing, so counts do.
    idle = [0.0, *accumulate(edges)]
    model = cp_model.CpModel()
    counts: list[list[cp_model.IntVar]] = [[] for _ in range(devices)]
    kinds = Counter(_parts(case, layer) for layer in layers[1:])
    for number, (_, count) in enumerate(kinds.items()):
        row = [model.new_int_var(0, count, f"n{number}.{device}") for device in range(devices)]
        model.add(sum(row) == count)
        for device, variable in enumerate(row):
            counts[device].append(variable)
    first = _parts(case, layers[0])
    horizon = _down(case.micro_batches * sum(sum(_parts(case, layer)) for layer in layers) + idle[-1])
    makespan = model.new_int_var(0, horizon, "makespan")
    for device, own in enumerate(counts):
        work = _sum(case, kinds, own, (0, 1, 2)) + (0 if device else _down(case.micro_batches * sum(first)))
        model.add(work + _down(idle[min(device, len(layers))]) <= makespan)
    if len(layers) > 1:
        _add_window(model, case, kinds, counts, makespan, horizon)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    solver.solve(model)
    return max(lower_bound(case), solver.best_objective_bound / _SCALE)


def _add_window(
    model: cp_model.CpModel,
    case: Case,
    kinds: Counter[_Times],
    counts: list[list[cp_model.IntVar]],
    makespan: cp_model.IntVar,
    horizon: int,
) -> None:
    """The device of the last layer, whichever it is: its other layers are all before the last one."""
    times = [_parts(case, layer) for layer in case.layers]
    first, last = times[0], times[-1]
    place, places = list(kinds).index(last), []
    core = _down(case.micro_batches * (last[0] + last[1]))
    for device, own in enumerate(counts):
        has_last = model.new_bool_var(f"last{device}")
        model.add(own[place] >= 1).only_enforce_if(has_last)
        if kinds[last] == 1:
            model.add(own[place] == 0).only_enforce_if(~has_last)
        before = model.new_int_var(_down(sum(f for f, _, _ in times[:-1])), horizon, f"before{device}")
        after = model.new_int_var(_down(sum(b for _, b, _ in times[:-1])), horizon, f"after{device}")
        of_first = case.micro_batches if not device else 0
        forwards = _sum(case, kinds, own, (0,)) + _down(of_first * first[0])
        backwards = _sum(case, kinds, own, (1, 2)) + _down(of_first * (first[1] + first[2]))
        model.add(before >= forwards - _up(case.micro_batches * last[0]))
        model.add(after >= backwards - _up(case.micro_batches * last[1]))
        model.add(core + before + after <= makespan).only_enforce_if(has_last)
        places.append(has_last)
    model.add_exactly_one(places)


def _is_fused(case: Case) -> bool:
    return case.backward is Backward.FUSED


def _parts(case: Case, layer: Layer) -> _Times:
    """F, B and W of one micro-batch; a fused backward is all B."""
    speed = case.speeds[0]
    if _is_fused(case):
        return layer.forward / speed, (layer.backward_input + layer.backward_weight) / speed, 0.0
    return layer.forward / speed, layer.backward_input / speed, layer.backward_weight / speed


def _sum(
    case: Case, kinds: Counter[_Times], own: list[cp_model.IntVar], parts: tuple[int, ...]
) -> cp_model.LinearExprT:
    """Some of F, B and W of a device's layers over all micro-batches, rounded down."""
    each = [_down(case.micro_batches * sum(times[part] for part in parts)) for times in kinds]
    return cp_model.LinearExpr.weighted_sum(own, each)


def _down(time: float) -> int:
    return int(time * _SCALE)


def _up(time: float) -> int:
    return int(time * _SCALE) + 1
