"""What a plan is worth: exact longest path, peak memory and coverage.

Model of time: each device runs its list in order, one operation at a time, each as early as its predecessors allow. F
of a stage follows F of the stage before; the backward follows the backward of the stage after (the last stage's follows
its own F); W follows B. An edge between two devices takes ``communication`` and occupies neither.
An activation is held from the start of F to the end of both B and W. Links have no bandwidth limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel.layouts.programs.execution import ARRIVES_AS, COMPUTES, RECEIVES, cell_receiver, walk
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Order, checked_programs, gap_in
from evenkeel.pipelines.case import Backward, Case, Layer, PlacementRule, allowed
from evenkeel.pipelines.costs import stage_costs
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
    _check(case, plan)
    starts = _starts(case, plan, costs)
    durations = [[_duration(op, costs[stage]) for op, _, stage in order] for order in plan.orders]
    spans = [(own[0], own[-1] + lasts[-1]) for own, lasts in zip(starts, durations, strict=True) if own]
    peaks = tuple(_peak(order, costs) for order in plan.orders)
    if case.memory_limit is not None and max(peaks) > allowed(case.memory_limit):
        device = peaks.index(max(peaks))
        raise ValueError(f"device {device} holds {peaks[device]:g}, more than the limit {case.memory_limit:g}")
    return Evaluation(
        makespan=max(end for _, end in spans),
        busy=tuple(sum(times) for times in durations),
        peak_activation=peaks,
        device_span=max(end - start for start, end in spans),
        starts=tuple(map(tuple, starts)),
    )


def _check(case: Case, plan: Plan) -> None:
    if len(plan.orders) != case.devices:
        raise ValueError(f"the plan orders {len(plan.orders)} devices, the case has {case.devices}")
    num_stages = len(plan.partition)
    if case.stages is not None and num_stages != case.stages:
        raise ValueError(f"the case asks for {case.stages} stages, the plan has {num_stages}")
    if case.placement is PlacementRule.CYCLIC and any(d != s % case.devices for s, d in enumerate(plan.placement)):
        raise ValueError(f"the case asks for cyclic placement, the plan has {list(plan.placement)}")
    if gap := gap_in(plan.orders, _cells(case, plan), case.micro_batches):
        raise ValueError(f"the plan: {gap}")
    for device, order in enumerate(plan.orders):
        if case.backward is Backward.FUSED and any(turn.op is Op.BACKWARD_INPUT for turn in order):
            raise ValueError(f"device {device} splits the backward, but the case has it fused")
        if case.fifo:
            _check_fifo(device, order)


def _cells(case: Case, plan: Plan) -> list[tuple[int, ...]]:
    """Stages of each device."""
    return [tuple([s for s, at in enumerate(plan.placement) if at == device]) for device in range(case.devices)]


def _check_fifo(device: int, order: Order) -> None:
    newest: dict[tuple[Op, int], int] = {}
    for turn in order:
        if newest.get((turn.op, turn.stage), -1) > turn.place:
            raise ValueError(f"device {device} takes {turn} after a later micro-batch, but the case asks for fifo")
        newest[turn.op, turn.stage] = turn.place


def _duration(op: Op, stage: Layer) -> float:
    if op is Op.FORWARD:
        return stage.forward
    if op is Op.BACKWARD_INPUT:
        return stage.backward_input
    return stage.backward_weight if op is Op.BACKWARD_WEIGHT else stage.backward_input + stage.backward_weight


def _starts(case: Case, plan: Plan, costs: Sequence[Layer]) -> list[list[float]]:
    """When the operations of each device start, each as early as it can."""
    cells = _cells(case, plan)
    clocks: list[float] = [0] * case.devices  # whole numbers stay whole
    arrivals: dict[tuple[Op, int, int], float] = {}
    starts: list[list[float]] = [[] for _ in plan.orders]
    programs = checked_programs(plan.orders, cells, range(case.micro_batches))
    for device, one, _ in walk(programs, cell_receiver(cells)):
        op, micro_batch, stage = one.op, one.micro_batch, one.stage
        if op in COMPUTES:
            starts[device].append(clocks[device])
            clocks[device] += _duration(op, costs[stage])
        elif op in RECEIVES:
            clocks[device] = max(clocks[device], arrivals[op, micro_batch, stage])
        elif op in ARRIVES_AS:
            as_op, further = ARRIVES_AS[op]
            arrivals[as_op, micro_batch, stage + further] = clocks[device] + case.communication
    return starts


def _peak(order: Order, costs: Sequence[Layer]) -> float:
    held = peak = 0.0
    half_done: set[tuple[int, int]] = set()
    for op, place, stage in order:
        if op is Op.FORWARD:
            held += costs[stage].activation
            peak = max(peak, held)
        elif op is Op.BACKWARD or (place, stage) in half_done:
            held -= costs[stage].activation
        else:
            half_done.add((place, stage))
    return peak
