"""A lower bound that knows that layers are whole: no plan can be more even than the most even deal of layers.

It also knows the window of the model's last layer, its head, in large vocabularies many layers' work: before its first
F a device can only do F of its other layers, after its last B only their backward and weights, so a device ends no
sooner than ``F and B of the head + max(way to it, F of the others) + max(way back, their B and W and its W)``. And it
knows how few devices can be at work at the start, whichever they are (:func:`evenkeel.pipelines.proofs.bounds.waits`).
Solved by CP-SAT, so it is a bound at any time and tight when the search ends. Needs the extra ``pipelines`` (ortools).
"""

from collections import Counter
from itertools import pairwise

from ortools.sat.python import cp_model

from evenkeel.pipelines.case import Backward, Case
from evenkeel.pipelines.proofs.bounds import lower_bound, waits

_SCALE = 1000
_Times = tuple[float, float, float]


def placement_bound(case: Case, *, seconds: float = 10.0, deadline_seconds: float | None = None) -> float:
    """The least possible time of the fullest device, with the start (fused: and end) that devices cannot avoid.

    Args:
        case: The case.
        seconds: About how long the solver may search; counted by its work, so that the bound is the same each time.
        deadline_seconds: Time after which it ends whatever it has done; None is no limit.

    Raises:
        ValueError: The devices are unequal, or stages have costs of their own.
    """
    if not case.has_equal_devices or case.stage_bias is not None:
        raise ValueError("the placement bound is for equal devices and stages without costs of their own")
    if len(case.layers) == 1:
        return lower_bound(case)
    deal = _Deal(case)
    deal.add_work()
    deal.add_window()
    deal.model.minimize(deal.makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_deterministic_time = seconds
    if deadline_seconds is not None:
        solver.parameters.max_time_in_seconds = deadline_seconds
    solver.solve(deal.model)
    return max(lower_bound(case), solver.best_objective_bound / _SCALE)


class _Deal:
    """The layers dealt to the devices: device 0 has the last; the others begin in turn, and it somewhere among them."""

    def __init__(self, case: Case) -> None:
        self._case, speed = case, case.speeds[0]
        self._times = [(f / speed, b / speed, w / speed) for f, b, w in map(case.passes, case.layers)]
        self.model = model = cp_model.CpModel()
        # Whether device 0 begins before the others, one by one; if before the first of them it has the first layer.
        self._is_before = [model.new_bool_var(f"before{device}") for device in range(1, case.devices)]
        for sooner, later in pairwise(self._is_before):
            model.add_implication(sooner, later)
        self._with_last = self._is_before[0] if self._is_before else model.new_constant(1)
        # Equal layers are told apart by nothing, so counts do.
        self._kinds = Counter(self._times[1:-1])
        self._counts: list[list[cp_model.IntVar]] = [[] for _ in range(case.devices)]
        for number, count in enumerate(self._kinds.values()):
            row = [model.new_int_var(0, count, f"n{number}.{device}") for device in range(case.devices)]
            model.add(sum(row) == count)
            for device, variable in enumerate(row):
                self._counts[device].append(variable)
        edges = [[f for f, _, _ in self._times]] + [[b for _, b, _ in self._times]] * (case.backward is Backward.FUSED)
        # The k-th device to begin has none of the first k layers, and cannot be at work while k are all that can.
        self._ways = [[sum(times[:device]) for device in range(case.devices + 1)] for times in edges]
        self._idle = [waits(times, case.micro_batches, case.devices) for times in edges]
        self._horizon = _up(sum(map(sum, self._idle)) + 2 * case.micro_batches * sum(map(sum, self._times)))
        self.makespan = model.new_int_var(0, self._horizon, "makespan")

    def add_work(self) -> None:
        """A device works, and it waits while the first micro-batches come: one after another, for one device each."""
        case, model, lost = self._case, self.model, []
        most, starts = sum(idle[-1] for idle in self._idle), [sum(ways) for ways in zip(*self._ways, strict=True)]
        for device in range(case.devices):
            lost.append(model.new_int_var(0, _up(most), f"lost{device}"))
            if device:
                longer = _down(starts[device]) - _down(starts[device - 1])
                model.add(lost[device] >= _down(starts[device - 1]) + longer * self._is_before[device - 1])
            model.add(lost[device] + self._time(device, (0, 1, 2), with_last=not device) <= self.makespan)
        model.add(lost[0] >= sum(self._wait(ways) for ways in self._ways))
        model.add(sum(lost) >= _down(sum(map(sum, self._idle))))

    def add_window(self) -> None:
        """What the device of the last layer can only do before its first F, and after its last B."""
        times, model = self._times, self.model
        before = model.new_int_var(_down(sum(f for f, _, _ in times[:-1])), self._horizon, "before")
        after = model.new_int_var(_down(sum(b for _, b, _ in times[:-1])), self._horizon, "after")
        to_first, *from_last = map(self._wait, self._ways)
        model.add(before >= self._time(0, (0,)) + to_first)
        model.add(after >= self._time(0, (1, 2)) + self._passes(times[-1], (2,)) + sum(from_last))
        model.add(self._passes(times[-1], (0, 1)) + before + after <= self.makespan)

    def _wait(self, ways: list[float]) -> cp_model.IntVar:
        """How far from the start (or the end) device 0 is: as far as there are devices before it."""
        wait = self.model.new_int_var(0, self._horizon, "wait")
        steps = [_down(there) - _down(here) for here, there in pairwise(ways[: self._case.devices])]
        self.model.add(wait == sum(steps) - cp_model.LinearExpr.weighted_sum(self._is_before, steps))
        return wait

    def _passes(self, times: _Times, parts: tuple[int, ...]) -> int:
        return _down(self._case.micro_batches * sum(times[part] for part in parts))

    def _time(self, device: int, parts: tuple[int, ...], *, with_last: bool = False) -> cp_model.IntVar:
        """Some of F, B and W of a device's layers over all micro-batches, rounded down; without the last layer's."""
        each = [self._passes(times, parts) for times in self._kinds]
        first, fixed = self._passes(self._times[0], parts), self._passes(self._times[-1], parts) * with_last
        variables = [*self._counts[device], self._with_last]
        if device == 1:
            first, fixed = -first, fixed + first
        dealt = cp_model.LinearExpr.weighted_sum(variables, [*each, first if device < 2 else 0])
        time = self.model.new_int_var(0, self._horizon, f"time{device}.{parts}")
        self.model.add(time == dealt + fixed)
        return time


def _down(time: float) -> int:
    return int(time * _SCALE)


def _up(time: float) -> int:
    return int(time * _SCALE) + 1
