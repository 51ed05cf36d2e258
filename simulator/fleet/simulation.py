"""Runs one job on one failing fleet under one strategy.

Events: a fault begins or ends (the truth changes at once), a verdict (the strategy sees estimates and answers), the end
of a transition, a wish to be asked again. Between them the rate is constant: the operation's true iteration time under
the cost model. A job that uses a dead device makes no progress until its strategy answers. Not simulated: noise from
iteration to iteration, iterations that are cut at a failure (half an iteration per failure).
"""

import heapq
import time
from collections.abc import Callable, Sequence

import numpy as np

from layouts.layout import Layout
from services.scheduler.planning.cost_model import CostModel
from simulator.fleet.detection import DetectorModel
from simulator.fleet.faults import Fault, Truth, checked_faults
from simulator.fleet.operation import Operation, operation_of, operation_seconds
from simulator.fleet.result import RunResult, Segment
from simulator.fleet.strategy import Costs, Question, Strategy
from simulator.fleet.topology import Topology

_BEGIN, _END, _SEEN, _GONE, _WAKE, _ASK = range(6)
_Event = tuple[float, int, int]
"""Moment, kind, index of the fault."""


class FleetSimulation:
    """One run; call :meth:`run` once.

    Args:
        home: Full shape of the job; its standbys are the fleet's.
        cost: Cost model.
        topology: The fleet.
        faults: What breaks when.
        detector: How it is noticed.
        costs: Constants.
        strategy: Who decides.
        duration_seconds: How long.
        seed: Of misses and estimates.
        on_progress: Called with the simulated seconds that are done.
    """

    def __init__(
        self,
        *,
        home: Layout,
        cost: CostModel,
        topology: Topology,
        faults: Sequence[Fault],
        detector: DetectorModel,
        costs: Costs,
        strategy: Strategy,
        duration_seconds: float,
        seed: int = 0,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        num_ranks = len(home.ranks) + len(home.standbys)
        if num_ranks > topology.num_devices:
            raise ValueError(f"the job has {num_ranks} ranks, the fleet {topology.num_devices} devices: make it larger")
        if not duration_seconds > 0.0:
            raise ValueError(f"duration_seconds is {duration_seconds}: it must be above 0")
        self._home, self._cost, self._topology, self._costs = home, cost, topology, costs
        self._faults = checked_faults(faults, topology)
        self._detector, self._strategy, self._duration = detector, strategy, duration_seconds
        self._rng = np.random.default_rng(seed)
        self._on_progress = on_progress
        self._truth = Truth(topology.num_devices)
        self._known: dict[int, dict[int, float]] = {}
        self._slow_since: dict[int, float] = {}
        self._estimates: dict[int, tuple[float, ...]] = {}
        self._operation: Operation | None = operation_of(home)
        self._events: list[_Event] = []
        self._busy_until, self._num_answers = 0.0, 0
        self._paused = self._stopped = 0.0
        self._plan_seconds: list[float] = []
        self._segments: list[Segment] = []
        self._ask_at: float | None = None
        self._iteration_cache: tuple[Operation | None, dict[int, float], float] | None = None

    def run(self) -> RunResult:
        """The run from its start to its end."""
        everyone = dict.fromkeys((*self._home.ranks, *self._home.standbys), 1.0)
        fault_free = self._cost.iteration_seconds(self._home, everyone)
        for index, fault in enumerate(self._faults):
            self._schedule(fault.at_seconds, _BEGIN, index)
            self._schedule(fault.at_seconds + fault.duration_seconds, _END, index)
        now = 0.0
        while now < self._duration:
            at = self._events[0][0] if self._events else self._duration
            until = min(at, self._duration)
            if until > now:
                self._add_segment(now, until, fault_free)
                if self._on_progress:
                    self._on_progress(until)
                now = until
            asked = False
            while self._events and self._events[0][0] <= now and now < self._duration:
                _, kind, index = heapq.heappop(self._events)
                asked = self._apply(now, kind, index) or asked
            if asked and now < self._duration:
                self._ask(now)
        return self._result(fault_free)

    def _schedule(self, at: float, kind: int, index: int) -> None:
        if at < self._duration:
            heapq.heappush(self._events, (at, kind, index))

    def _apply(self, now: float, kind: int, index: int) -> bool:
        """Applies an event; True when the strategy must be asked."""
        if kind == _WAKE:
            return False
        if kind == _ASK:
            return self._ask_at is not None and now >= self._ask_at
        fault = self._faults[index]
        delay = self._detector.delay_seconds(fault.throughput)
        if kind == _BEGIN:
            self._truth.begin(fault)
            if self._detector.notices(self._rng, fault.throughput):
                self._estimates[index] = tuple(
                    self._detector.estimate(self._rng, fault.throughput) for _ in fault.devices
                )
                self._schedule(now + delay, _SEEN, index)
            return False
        if kind == _END:
            self._truth.end(fault)
            if index in self._estimates:
                self._schedule(now + delay, _GONE, index)
            return False
        if kind == _SEEN:
            for device, estimate in zip(fault.devices, self._estimates[index], strict=True):
                self._known.setdefault(device, {})[index] = estimate
            if fault.throughput > 0.0:
                self._slow_since[index] = now
            return True
        for device in fault.devices:
            self._known[device].pop(index, None)
        self._slow_since.pop(index, None)
        return True

    def _ask(self, now: float) -> None:
        """The strategy sees what is known and answers."""
        throughputs = {}
        for rank in (*self._home.ranks, *self._home.standbys):
            estimate = min(self._known.get(rank, {}).values(), default=1.0)
            if estimate > 0.0:
                throughputs[rank] = estimate
        question = Question(
            at_seconds=now,
            home=self._home,
            current=self._operation,
            throughputs=throughputs,
            cost=self._cost,
            topology=self._topology,
            costs=self._costs,
            slow_since_seconds=min(self._slow_since.values(), default=None),
        )
        started = time.process_time()
        answer = self._strategy.answer(question)
        self._plan_seconds.append(time.process_time() - started)
        if answer.operation != self._operation:
            self._num_answers += 1
        self._operation = answer.operation
        if answer.pause_seconds > 0.0:
            self._busy_until = max(self._busy_until, now) + answer.pause_seconds
            self._schedule(self._busy_until, _WAKE, 0)
        self._ask_at = None
        if answer.ask_again_seconds is not None:
            self._ask_at = now + max(1.0, answer.ask_again_seconds)
            self._schedule(self._ask_at, _ASK, 0)

    def _iteration_seconds(self, live: dict[int, float]) -> float | None:
        """True seconds per iteration; None when the job stands still."""
        operation = self._operation
        if operation is None or not operation.ranks <= live.keys():
            return None
        cached = self._iteration_cache
        if cached is None or cached[0] is not operation or cached[1] != live:
            cached = operation, live, operation_seconds(self._cost, operation, live)
            self._iteration_cache = cached
        return cached[2]

    def _add_segment(self, start: float, until: float, fault_free: float) -> None:
        live = self._truth.live()
        job = [rank for rank in (*self._home.ranks, *self._home.standbys) if rank in live]
        num_home = len(self._home.ranks) + len(self._home.standbys)
        rate = 0.0
        if start < self._busy_until:
            self._paused += until - start
        else:
            iteration = self._iteration_seconds(live)
            if iteration is None:
                self._stopped += until - start
            else:
                assert self._operation is not None
                rate = self._operation.batch_fraction * fault_free / iteration
        segment = Segment(
            from_seconds=start,
            until_seconds=until,
            rate=rate,
            num_live=len(live),
            bound=sum(live[rank] for rank in job) / num_home,
        )
        self._segments.append(segment)

    def _result(self, fault_free: float) -> RunResult:
        def mean(values: list[float]) -> float:
            spans = [segment.until_seconds - segment.from_seconds for segment in self._segments]
            return sum(v * span for v, span in zip(values, spans, strict=True)) / self._duration

        working = [segment.until_seconds for segment in self._segments if segment.rate > 0.0]
        ran_last = working[-1] if working else 0.0
        ended_dead = self._segments[-1].rate <= 0.0 and self._operation is None
        return RunResult(
            strategy=self._strategy.name,
            duration_seconds=self._duration,
            fault_free_iteration_seconds=fault_free,
            throughput=mean([segment.rate for segment in self._segments]),
            bound=mean([segment.bound for segment in self._segments]),
            paused_seconds=self._paused,
            stopped_seconds=self._stopped,
            num_answers=self._num_answers,
            aborted_at_seconds=ran_last if ended_dead else None,
            plan_seconds=tuple(self._plan_seconds),
            segments=tuple(self._segments),
        )
