"""A lower bound that knows that layers are whole: no plan can be more even than the most even deal of layers.

Solved by CP-SAT, so it is a bound at any time and tight when the search ends. Needs the extra ``pipelines`` (ortools).
"""

from collections import Counter
from itertools import accumulate

from ortools.sat.python import cp_model

from pipelines.bounds import lower_bound
from pipelines.case import Backward, Case

_SCALE = 1000


def placement_bound(case: Case, *, seconds: float = 10.0) -> float:
    """The least possible time of the fullest device, with the start (fused: and end) that it cannot avoid.

    Raises:
        ValueError: The devices are unequal, or stages have costs of their own.
    """
    if not case.has_equal_devices or case.stage_bias is not None:
        raise ValueError("the placement bound is for equal devices and stages without costs of their own")
    speed, layers, devices = case.speeds[0], case.layers, case.devices
    edges = [layer.forward / speed for layer in layers]
    if case.backward is Backward.FUSED:
        backs = [(layer.backward_input + layer.backward_weight) / speed for layer in layers]
        edges = [forward + back for forward, back in zip(edges, backs, strict=True)]
    # The k-th device to begin has none of the first k layers; equal layers are told apart by nothing, so counts do.
    idle = [0.0, *accumulate(edges)]
    model = cp_model.CpModel()
    counts: list[list[cp_model.IntVar]] = [[] for _ in range(devices)]
    loads: list[int] = []
    for work, number in Counter(layer.work for layer in layers[1:]).items():
        row = [model.new_int_var(0, number, f"n{len(loads)}.{device}") for device in range(devices)]
        model.add(sum(row) == number)
        loads.append(int(case.micro_batches * work / speed * _SCALE))
        for device, count in enumerate(row):
            counts[device].append(count)
    first = int(case.micro_batches * layers[0].work / speed * _SCALE)
    makespan = model.new_int_var(0, first + sum(loads) * len(layers) + int(idle[-1] * _SCALE), "makespan")
    for device, own in enumerate(counts):
        work_of = sum(load * count for load, count in zip(loads, own, strict=True))
        wait = int(idle[min(device, len(layers))] * _SCALE)
        model.add(work_of + wait + (0 if device else first) <= makespan)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    solver.solve(model)
    return max(lower_bound(case), solver.best_objective_bound / _SCALE)
