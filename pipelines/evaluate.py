"""What a plan is worth: exact longest path, peak memory and coverage.

Model of time: each device runs its list in order, one operation at a time, each as early as its predecessors allow. F
of a stage follows F of the stage before; the backward follows the backward of the stage after (the last stage's follows
its own F); W follows B. An edge between two devices takes ``communication`` and occupies neither.
An activation is held from the start of F to the end of both B and W. Links have no bandwidth limit.
"""

from dataclasses import dataclass

from evenkeel.layouts.programs.execution import ARRIVES_AS, COMPUTES, RECEIVES, StuckError, cell_receiver, walk
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Order, Turn, checked_programs
from evenkeel.pipelines.case import Backward, Case, PlacementRule, allowed
from evenkeel.pipelines.costs import StageCosts, stage_costs
from evenkeel.pipelines.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What one plan leads to.

    Attributes:
        makespan: From time 0 to the end of the last operation.
        busy: Time that each device works.
        peak_activation: Most activation that each device holds.
        device_span: Longest time from the first start to the last end of a device.
        starts: Start of each operation, ``starts[device][index]`` like the plan's orders.
    """

    makespan: float
    busy: tuple[float, ...]
    peak_activation: tuple[float, ...]
    device_span: float
    starts: tuple[tuple[float, ...], ...]

    @property
    def bubble_fractions(self) -> tuple[float, ...]:
        """The part of the makespan in which each device does not work."""
        return tuple(1.0 - busy / self.makespan if self.makespan else 0.0 for busy in self.busy)


def evaluate(case: Case, plan: Plan) -> Evaluation:
    """Runs a plan on paper.

    Raises:
        ValueError: The plan leaves work out, does it twice, waits for ever, or breaks a rule of the case.
    """
    costs = stage_costs(case, plan.partition, plan.placement)
    _check(case, plan, costs)
    starts, ends = _times(case, plan, costs)
    durations = [[_duration(costs, op, stage) for op, _, stage in order] for order in plan.orders]
    spans = [end[-1] - start[0] for start, end in zip(starts, ends, strict=True) if start]
    peaks = tuple(_peak(order, costs) for order in plan.orders)
    if case.memory_limit is not None and max(peaks) > allowed(case.memory_limit):
        device = peaks.index(max(peaks))
        raise ValueError(f"device {device} holds {peaks[device]:g}, more than the limit {case.memory_limit:g}")
    return Evaluation(
        makespan=max(end[-1] for end in ends if end),
        busy=tuple(sum(times) for times in durations),
        peak_activation=peaks,
        device_span=max(spans),
        starts=tuple(tuple(start) for start in starts),
    )


def _check(case: Case, plan: Plan, costs: StageCosts) -> None:
    if len(plan.orders) != case.devices:
        raise ValueError(f"the plan orders {len(plan.orders)} devices, the case has {case.devices}")
    num_stages = len(plan.partition)
    if case.stages is not None and num_stages != case.stages:
        raise ValueError(f"the case asks for {case.stages} stages, the plan has {num_stages}")
    if case.placement is PlacementRule.CYCLIC and any(d != s % case.devices for s, d in enumerate(plan.placement)):
        raise ValueError(f"the case asks for cyclic placement, the plan has {list(plan.placement)}")
    seen: set[Turn] = set()
    for device, order in enumerate(plan.orders):
        for turn in order:
            if not (0 <= turn.stage < num_stages and 0 <= turn.place < case.micro_batches):
                raise ValueError(f"device {device} has {turn}, but there is no such stage or micro-batch")
            if costs.device[turn.stage] != device:
                raise ValueError(f"device {device} runs {turn}, which is placed on device {costs.device[turn.stage]}")
            if turn in seen:
                raise ValueError(f"{turn} is done twice")
            seen.add(turn)
        if case.fifo:
            _check_fifo(device, order)
    for stage in range(num_stages):
        for micro_batch in range(case.micro_batches):
            _check_coverage(case, seen, micro_batch, stage)


def _check_coverage(case: Case, seen: set[Turn], micro_batch: int, stage: int) -> None:
    kinds = {op for op in COMPUTES if Turn(op, micro_batch, stage) in seen}
    fused = {Op.FORWARD, Op.BACKWARD}
    split = {Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT}
    if kinds != fused and (kinds != split or case.backward is Backward.FUSED):
        raise ValueError(f"stage {stage}, micro-batch {micro_batch} has {sorted(kinds)}, not all of its passes")


def _check_fifo(device: int, order: Order) -> None:
    newest: dict[tuple[Op, int], int] = {}
    for turn in order:
        if newest.get((turn.op, turn.stage), -1) > turn.place:
            raise ValueError(f"device {device} takes {turn} after a later micro-batch, but the case asks for fifo")
        newest[turn.op, turn.stage] = turn.place


def _duration(costs: StageCosts, op: Op, stage: int) -> float:
    if op is Op.FORWARD:
        return costs.forward[stage]
    if op is Op.BACKWARD_INPUT:
        return costs.backward_input[stage]
    if op is Op.BACKWARD_WEIGHT:
        return costs.backward_weight[stage]
    return costs.backward_input[stage] + costs.backward_weight[stage]


def _times(case: Case, plan: Plan, costs: StageCosts) -> tuple[list[list[float]], list[list[float]]]:
    """Starts and ends of all operations, each as early as it can be."""
    cells = [[s for s, device in enumerate(costs.device) if device == each] for each in range(case.devices)]
    clocks: list[float] = [0] * case.devices  # whole numbers stay whole
    arrivals: dict[tuple[Op, int, int], float] = {}
    starts: list[list[float]] = [[] for _ in plan.orders]
    ends: list[list[float]] = [[] for _ in plan.orders]
    try:
        programs = checked_programs(plan.orders, cells, range(case.micro_batches))
        for device, one, _ in walk(programs, cell_receiver(cells)):
            op, micro_batch, stage = one.op, one.micro_batch, one.stage
            if op in COMPUTES:
                starts[device].append(clocks[device])
                clocks[device] += _duration(costs, op, stage)
                ends[device].append(clocks[device])
            elif op in RECEIVES:
                clocks[device] = max(clocks[device], arrivals[op, micro_batch, stage])
            elif op in ARRIVES_AS:
                as_op, further = ARRIVES_AS[op]
                arrivals[as_op, micro_batch, stage + further] = clocks[device] + case.communication
    except StuckError as error:
        at = f"{error.instruction.op} of micro-batch {error.instruction.micro_batch}, stage {error.instruction.stage}"
        raise ValueError(f"the plan waits for ever: device {error.place} at {at}") from error
    return starts, ends


def _peak(order: Order, costs: StageCosts) -> float:
    held = peak = 0.0
    half_done: set[tuple[int, int]] = set()
    for op, place, stage in order:
        if op is Op.FORWARD:
            held += costs.activation[stage]
            peak = max(peak, held)
        elif op is Op.BACKWARD or (place, stage) in half_done:
            held -= costs.activation[stage]
        else:
            half_done.add((place, stage))
    return peak
