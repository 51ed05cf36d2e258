"""Runs one job on one failing fleet under one strategy.

Events: a fault begins or ends (the truth changes at once), a verdict (the strategy sees estimates and answers), the end
of a transition, a wish to be asked again. Between them the rate is constant: the operation's true iteration time under
the cost model. A job that uses a dead device makes no progress until its strategy answers; the iteration that a death
cuts is done again from its start, or from what survivors keep (``cut_iteration.py``). An event costs a few copies of a
table of devices and no loop over them, so a fleet of 100,000 costs milliseconds an event.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.links import SlowLink
from evenkeel.simulator.fleet.cost.cut_iteration import CutIteration, cut_by
from evenkeel.simulator.fleet.faults.detection import DetectorModel
from evenkeel.simulator.fleet.faults.faults import Fault, LinkFault, Truth, checked_faults
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.operation.conditions import Conditions
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of, operation_seconds
from evenkeel.simulator.fleet.result import RunResult, Segment
from evenkeel.simulator.fleet.strategy import Answer, Costs, Question, Strategy

_BEGIN, _END, _SEEN, _GONE, _WAKE, _ASK, _LINK_BEGIN, _LINK_END, _LINK_SEEN, _LINK_GONE = range(10)
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
        link_faults: Slow links; everybody suffers them, and who asks for links is told of those that are noticed.
        noise: Relative standard deviation of each operation of a true iteration.
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
        link_faults: Sequence[LinkFault] = (),
        noise: float = 0.0,
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
        self._link_faults = tuple(link_faults)
        self._conditions = Conditions(noise=noise, seed=seed)
        self._slow_links: dict[int, SlowLink] = {}
        self._known_links: dict[int, SlowLink] = {}
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
        self._everyone = dict.fromkeys((*home.ranks, *home.standbys), 1.0)
        self._iterations_done = 0.0
        self._cut_iteration: CutIteration | None = None

    def run(self) -> RunResult:
        """The run from its start to its end."""
        fault_free = operation_seconds(self._cost, operation_of(self._home), self._everyone, self._conditions)
        for index, link in enumerate(self._link_faults):
            self._schedule(link.at_seconds, _LINK_BEGIN, index)
            self._schedule(link.at_seconds + link.duration_seconds, _LINK_END, index)
            if self._detector.link_seconds is not None and link.duration_seconds > self._detector.link_seconds:
                seen = link.at_seconds + self._detector.link_seconds
                self._schedule(seen, _LINK_SEEN, index)
                self._schedule(seen + link.duration_seconds, _LINK_GONE, index)
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
        if kind in {_LINK_BEGIN, _LINK_END}:
            self._change_link(kind, index)
            return False
        if kind == _LINK_SEEN:
            self._known_links[index] = self._link_faults[index].link
            return True
        if kind == _LINK_GONE:
            del self._known_links[index]
            return True
        fault = self._faults[index]
        delay = self._detector.delay_seconds(fault)
        if kind == _BEGIN:
            if fault.throughput <= 0.0:
                self._cut(now, fault)
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
                self._schedule(now + self._detector.return_seconds(fault), _GONE, index)
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
        throughputs = dict(self._everyone)
        for device, estimates in self._known.items():
            if not estimates or device not in throughputs:
                continue
            throughputs[device] = min(estimates.values())
            if throughputs[device] <= 0.0:
                del throughputs[device]
        question = Question(
            at_seconds=now,
            home=self._home,
            current=self._operation,
            throughputs=throughputs,
            cost=self._cost,
            topology=self._topology,
            costs=self._costs,
            slow_since_seconds=min(self._slow_since.values(), default=None),
            links=tuple(self._known_links.values()),
        )
        started = time.process_time()
        answer = self._strategy.answer(question)
        self._plan_seconds.append(time.process_time() - started)
        pause = answer.pause_seconds
        if answer.operation is not self._operation and answer.operation != self._operation:
            self._num_answers += 1
            self._iterations_done = 0.0
            self._operation = answer.operation
            if answer.operation is not None:
                pause = max(0.0, pause + self._cut_seconds(now, answer))
                self._cut_iteration = None
        self._operation = answer.operation
        if pause > 0.0:
            self._busy_until = max(self._busy_until, now) + pause
            self._schedule(self._busy_until, _WAKE, 0)
        self._ask_at = None
        if answer.ask_again_seconds is not None:
            self._ask_at = now + max(1.0, answer.ask_again_seconds)
            self._schedule(self._ask_at, _ASK, 0)

    def _change_link(self, kind: int, index: int) -> None:
        if kind == _LINK_BEGIN:
            self._slow_links[index] = self._link_faults[index].link
        else:
            del self._slow_links[index]
        self._conditions = replace(self._conditions, links=tuple(self._slow_links.values()))
        self._iteration_cache = None

    def _cut(self, now: float, fault: Fault) -> None:
        """A death in the midst of an iteration: at least a part of what was done of it is lost."""
        operation = self._operation
        if operation is None or operation.ranks.isdisjoint(fault.devices):
            return
        if self._iteration_cache is not None:
            seconds, fraction = self._iteration_cache[2], self._iterations_done % 1.0
            self._cut_iteration = cut_by(self._cut_iteration, operation, fault.devices, now, fraction, seconds)
        self._iterations_done = 0.0

    def _cut_seconds(self, now: float, answer: Answer) -> float:
        """Seconds that the iteration which was cut costs the job as it now runs."""
        cut = self._cut_iteration
        if cut is None or not answer.reruns_iteration:
            return 0.0
        following = self._iteration_seconds(self._truth.live()) if answer.keeps_sums else None
        if following is None or answer.operation is None:
            return cut.restarted_seconds
        return cut.kept_seconds(now, answer.operation, following)

    def _iteration_seconds(self, live: dict[int, float]) -> float | None:
        """True seconds per iteration; None when the job stands still."""
        operation = self._operation
        if operation is None or not operation.ranks.isdisjoint(self._truth.dead()):
            return None
        cached = self._iteration_cache
        if cached is None or cached[0] is not operation or cached[1] != live:
            cached = operation, live, operation_seconds(self._cost, operation, live, self._conditions)
            self._iteration_cache = cached
        return cached[2]

    def _add_segment(self, start: float, until: float, fault_free: float) -> None:
        ill = self._truth.ill()
        lost = sum(1.0 - p for device, p in ill.items() if device in self._everyone)
        num_home = len(self._everyone)
        rate = 0.0
        if start < self._busy_until:
            self._paused += until - start
        else:
            iteration = self._iteration_seconds(self._truth.live())
            if iteration is None:
                self._stopped += until - start
            else:
                assert self._operation is not None
                rate = self._operation.batch_fraction * fault_free / iteration
                self._iterations_done += (until - start) / iteration
        segment = Segment(
            from_seconds=start,
            until_seconds=until,
            rate=rate,
            num_live=self._topology.num_devices - sum(p <= 0.0 for p in ill.values()),
            bound=(num_home - lost) / num_home,
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
