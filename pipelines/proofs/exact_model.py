"""The constraint models of :mod:`evenkeel.pipelines.proofs.exact`: one assignment, or cyclic stages with free cuts.

Micro-batches are alike, so those of one kind on one stage may be taken in turn: nothing that can be reached is lost,
and there is far less to search. Times are whole numbers after scaling. One search thread: each run takes the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ortools.sat.python import cp_model

from evenkeel.pipelines.case import Backward, Case, allowed
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.proofs.whole_numbers import common_scale, small_fraction
from evenkeel.pipelines.search.dispatching.network import Network, network_of, plan_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one model said.

    Attributes:
        is_proven: The found schedule is the best of the model, or none is below the value that was given.
        plan: A better plan; None if there is none.
    """

    is_proven: bool
    plan: Plan | None


def prove_fixed(network: Network, limit: float | None, scale: int, below: float, seconds: float) -> Answer:
    """The best schedule of one assignment that is shorter than ``below``, or the proof that there is none."""
    horizon = _ceil(below * scale) - 1
    model = cp_model.CpModel()
    durations = [round(time * scale) for time in network.durations]
    starts = [model.new_int_var(0, horizon, f"s{op}") for op in range(len(durations))]
    makespan = model.new_int_var(0, horizon, "makespan")
    num_stages, delay = len(network.partition), round(network.stages.communication * scale)
    block = network.block
    on_device: list[list[cp_model.IntervalVar]] = [[] for _ in range(network.stages.num_devices)]
    for op, duration in enumerate(durations):
        on_device[network.device[op]].append(model.new_fixed_size_interval_var(starts[op], duration, f"i{op}"))
        for after in network.successors(op):
            wait = delay if network.device[op] != network.device[after] else 0
            model.add(starts[after] >= starts[op] + duration + wait)
        if op % block + num_stages < block:
            model.add(starts[op + num_stages] >= starts[op] + duration)
        if not network.successors(op):
            model.add(makespan >= starts[op] + duration)
    for intervals in on_device:
        model.add_no_overlap(intervals)
    if limit is not None:
        last = 2 * block if network.is_split else block
        _limit_memory(model, network, starts, durations, (last, block), limit, horizon)
    model.minimize(makespan)
    return _asked(model, seconds, lambda solver: plan_of(network, [solver.value(start) / scale for start in starts]))


def _limit_memory(
    model: cp_model.CpModel,
    network: Network,
    starts: Sequence[cp_model.IntVar],
    durations: Sequence[int],
    last_and_block: tuple[int, int],
    limit: float,
    horizon: int,
) -> None:
    last, block = last_and_block
    num_stages = len(network.partition)
    activation = network.stages.activation.tolist()
    scale = common_scale(small_fraction(size) for size in activation)
    held: list[list[cp_model.IntervalVar]] = [[] for _ in range(network.stages.num_devices)]
    sizes: list[list[int]] = [[] for _ in range(network.stages.num_devices)]
    for op in range(block):
        release = starts[last + op] + durations[last + op]
        length = model.new_int_var(0, horizon, f"h{op}")
        device = network.device[op]
        held[device].append(model.new_interval_var(starts[op], length, release, f"m{op}"))
        sizes[device].append(round(activation[op % num_stages] * scale))
    for intervals, demands in zip(held, sizes, strict=True):
        model.add_cumulative(intervals, demands, int(allowed(limit) * scale))


def prove_cuts(case: Case, scale: int, below: float, seconds: float) -> Answer:
    """The best plan of a cyclic case shorter than ``below`` over all cuts at once, or the proof that there is none.

    Raises:
        ValueError: The case has unequal devices, a split backward, communication or a memory limit.
    """
    if case.stages is None or case.backward is not Backward.FUSED or not case.has_equal_devices:
        raise ValueError("free cuts are solved for a fixed number of stages, fused backward and equal devices")
    if case.communication or case.memory_limit is not None:
        raise ValueError("free cuts are solved without communication and memory limit")
    horizon, num_stages, num_layers = _ceil(below * scale) - 1, case.stages, len(case.layers)
    model = cp_model.CpModel()
    cuts = [model.new_int_var(s, num_layers - num_stages + s, f"cut{s}") for s in range(num_stages + 1)]
    model.add(cuts[0] == 0)
    model.add(cuts[-1] == num_layers)
    for a, b in pairwise(cuts):
        model.add(b > a)
    speed = case.speeds[0]
    forward = _stage_times(
        model, case, cuts, [round(layer.forward / speed * scale) for layer in case.layers], "f", scale
    )
    back = [round(case.passes(layer)[1] / speed * scale) for layer in case.layers]
    backward = _stage_times(model, case, cuts, back, "b", scale)
    makespan = model.new_int_var(0, horizon, "makespan")
    starts = _cut_schedule(model, case, forward, backward, makespan, horizon)
    for device in range(case.devices):
        own = range(device, num_stages, case.devices)
        work = sum(forward[s] + backward[s] for s in own) * case.micro_batches
        model.add(work + sum(forward[s] + backward[s] for s in range(min(device, num_stages))) <= makespan)
    model.minimize(makespan)

    def found(solver: cp_model.CpSolver) -> Plan:
        partition = [solver.value(b) - solver.value(a) for a, b in pairwise(cuts)]
        network = network_of(case, partition, [s % case.devices for s in range(num_stages)])
        return plan_of(network, [solver.value(start) / scale for start in starts])

    return _asked(model, seconds, found)


def _stage_times(
    model: cp_model.CpModel, case: Case, cuts: Sequence[cp_model.IntVar], times: Sequence[int], name: str, scale: int
) -> list[cp_model.IntVar]:
    """Time of each stage between two cuts, with what its role adds."""
    sums = [0, *accumulate(times)]
    reached = [model.new_int_var(0, sums[-1], f"{name}sum{s}") for s in range(len(cuts))]
    for cut, total in zip(cuts, reached, strict=True):
        model.add_element(cut, sums, total)
    stages = []
    for s, (a, b) in enumerate(pairwise(reached)):
        role = case.role_cost(s, len(cuts) - 1)
        extra = role.forward if name == "f" else role.backward_input
        time = model.new_int_var(0, sums[-1] + round(extra * scale), f"{name}{s}")
        model.add(time == b - a + round(extra * scale))
        stages.append(time)
    return stages


def _cut_schedule(
    model: cp_model.CpModel,
    case: Case,
    forward: Sequence[cp_model.IntVar],
    backward: Sequence[cp_model.IntVar],
    makespan: cp_model.IntVar,
    horizon: int,
) -> list[cp_model.IntVar]:
    """Starts of all F, then of all B, micro-batch by micro-batch, as a network numbers them."""
    num_stages, count = len(forward), case.micro_batches
    starts: list[cp_model.IntVar] = []
    ends: list[cp_model.IntVar] = []
    on_device: list[list[cp_model.IntervalVar]] = [[] for _ in range(case.devices)]
    for kind, times in enumerate((forward, backward)):
        for m in range(count):
            for s in range(num_stages):
                start = model.new_int_var(0, horizon, f"s{kind}.{m}.{s}")
                end = model.new_int_var(0, horizon, f"e{kind}.{m}.{s}")
                on_device[s % case.devices].append(model.new_interval_var(start, times[s], end, f"i{kind}.{m}.{s}"))
                starts.append(start)
                ends.append(end)
    block = num_stages * count
    for op in range(block):
        m, s = divmod(op, num_stages)
        model.add(starts[block + op] >= (ends[op] if s == num_stages - 1 else ends[block + op + 1]))
        if s:
            model.add(starts[op] >= ends[op - 1])
        else:
            model.add(makespan >= ends[block + op])
        if m:
            model.add(starts[op] >= ends[op - num_stages])
            model.add(starts[block + op] >= ends[block + op - num_stages])
    for intervals in on_device:
        model.add_no_overlap(intervals)
    return starts


def _ceil(value: float) -> int:
    return int(value) if value == int(value) else int(value) + 1


def _asked(model: cp_model.CpModel, seconds: float, plan_in: Callable[[cp_model.CpSolver], Plan]) -> Answer:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    has_plan = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    is_proven = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return Answer(is_proven=is_proven, plan=plan_in(solver) if has_plan else None)
