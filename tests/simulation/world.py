"""A fleet from a seed: jobs, network, history, lease and schedulers on virtual time, faults, and what must always hold.

Real inside: the ranks' acceptor and cycle, the copies rule, and the whole of the scheduler between its adapters, with
its lease. The network, the database and the training are simulated.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, TypeVar

from evenkeel.history.errors import DeposedError
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.services.scheduler.serving.coordinator import Coordinator
from evenkeel.services.scheduler.serving.faults import JobAwayError
from tests.simulation.faults import Fault, Outcome, Scenario
from tests.simulation.history import MemoryHistory
from tests.simulation.job import SimulatedJob
from tests.simulation.leases import Leases
from tests.simulation.ranks import SimulatedRank
from tests.simulation.scheduler import Scheduler
from tests.simulation.virtual_loop import VirtualLoop

CALM_SECONDS = 20.0
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class World:
    """See the module."""

    began = _BEGAN

    def __init__(self, scenario: Scenario, faults: Iterable[Fault], loop: VirtualLoop) -> None:
        self.scenario, self.loop = scenario, loop
        self.random = Random(scenario.seed)
        self.broken: list[str] = []
        self.trace: list[str] = []
        self.history = MemoryHistory()
        self.leases = Leases(self)
        self.jobs = {f"job-{n}": SimulatedJob(self, f"job-{n}", shape) for n, shape in enumerate(scenario.jobs)}
        self._armed = [fault for fault in faults if fault.event]
        self._timed = [fault for fault in faults if not fault.event]
        self._counts: dict[str, int] = {}
        self._last_disturbance = 0.0
        self._errands: set[asyncio.Task[None]] = set()
        self._num_started = 0
        self._schedulers: list[Scheduler] = []

    # ---- time and words

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something of the world's: whoever asked for it may be dead by then."""
        self.loop.after(seconds, do)

    async def request(self, do: Callable[[], T], most_seconds: float = 0.01) -> T:
        """What the database answers; it does what it was asked, also when nobody waits for the answer any more."""
        answer: asyncio.Future[T] = self.loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)  # type: ignore[arg-type]
            else:
                answer.set_exception(error)
                answer.exception()

        def arrive() -> None:
            result, error = None, None
            try:
                result = do()
            except Exception as raised:
                error = raised
            self.after(self.random.uniform(0.0, most_seconds), lambda: settle(result, error))

        self.after(self.random.uniform(0.0, most_seconds), arrive)
        return await answer

    def happens(self, probability: float) -> bool:
        return probability > 0.0 and self.random.random() < probability

    def loses_message(self) -> bool:
        if lost := self.happens(self.scenario.messages_lost):
            self.disturb()
        return lost

    def slowness(self) -> float:
        """The longest that a word of a stream takes."""
        return 0.02 if self.random.random() < 0.9 else 0.5

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.now:8.3f} {text}")

    def disturbed(self, text: str) -> None:
        self.note(text)
        self.disturb()

    def disturb(self) -> None:
        """There is no calm yet: what is lost is asked again only when its time is over."""
        self._last_disturbance = self.loop.now

    def now(self) -> datetime:
        return datetime.fromtimestamp(_BEGAN.timestamp() + self.loop.now, UTC)

    # ---- schedulers

    @property
    def leader(self) -> Scheduler | None:
        """The newest that was in charge and still lives."""
        return next((one for one in reversed(self._schedulers) if one.coordinator is not None), None)

    def start_scheduler(self) -> None:
        self._num_started += 1
        self.disturbed(f"scheduler s{self._num_started} starts")
        self._schedulers.insert(0, Scheduler(self, f"s{self._num_started}"))

    def serves(self, scheduler: Scheduler) -> None:
        """It is in charge: what the detector knows of speeds is on its way to it."""
        self._schedulers.remove(scheduler)
        self._schedulers.append(scheduler)
        for job in self.jobs.values():
            self.until_taken(partial(_profile, job), 0.0, lambda: self.leader is scheduler)

    def scheduler_ends(self, scheduler: Scheduler, how: str) -> None:
        if scheduler.process.alive:
            self.disturbed(how)
            scheduler.process.kill()
            self._schedulers.remove(scheduler)
            self.after(self.random.uniform(0.5, 2.0), self.start_scheduler)

    def until_taken(
        self, take: Callable[[Coordinator], Coroutine[Any, Any, object]], seconds: float, wanted: Callable[[], bool]
    ) -> None:
        """What reaches the scheduler, again and again until one has taken it; sometimes once more."""

        async def work() -> None:
            await asyncio.sleep(seconds)
            while wanted():
                scheduler = self.leader
                if scheduler is not None and scheduler.coordinator is not None:
                    task = scheduler.process.spawn(take(scheduler.coordinator))
                    while not task.done() and scheduler.process.alive:
                        await asyncio.wait([task], timeout=0.25)
                    if (
                        task.done()
                        and self._is_taken(scheduler, task)
                        and not self.happens(self.scenario.messages_doubled)
                    ):
                        return
                await asyncio.sleep(0.1)

        self._errands.add(job := self.loop.create_task(work(), context=self.loop.outside))
        job.add_done_callback(self._errands.discard, context=self.loop.outside)

    def _is_taken(self, scheduler: Scheduler, task: asyncio.Task[object]) -> bool:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, DeposedError):
            self.scheduler_ends(scheduler, f"scheduler {scheduler.name} is deposed")
        elif error is not None and not isinstance(error, JobAwayError):
            self.broken.append(f"fault: {error!r}")
        return not task.cancelled() and error is None

    # ---- faults

    def happened(self, event: str, rank: SimulatedRank | None = None) -> None:
        """A moment of the protocol: perhaps one that a fault waits for."""
        self._counts[event] = count = self._counts.get(event, 0) + 1
        for fault in [one for one in self._armed if (one.event, one.nth) == (event, count)]:
            self._armed.remove(fault)
            if fault.seconds:
                self.after(fault.seconds, partial(self._strike, fault, rank))
            else:
                self._strike(fault, rank)

    def _strike(self, fault: Fault, rank: SimulatedRank | None = None) -> None:
        job = self.jobs[f"job-{fault.job}"] if rank is None else rank.job
        target = job.ranks.get(max(fault.rank, 0)) if rank is None or fault.rank >= 0 else rank
        match fault.kind:
            case "crash" | "stop scheduler":
                if (scheduler := self.leader) is not None:
                    scheduler.process.after_steps(fault.steps, lambda: self._strike_scheduler(scheduler, fault))
            case "slow store":
                self.disturbed("the history is slow")
                self.history.delay_seconds = 0.5
                self.after(3.0, lambda: setattr(self.history, "delay_seconds", 0.01))
            case _ if target is None or not target.alive:
                pass
            case "cut":
                self.disturbed(f"{job.job_id} rank {target.rank} is cut off from the scheduler")
                job.cut_until[target.rank, target.incarnation] = self.loop.now + fault.lasts_seconds
                self.after(fault.lasts_seconds, partial(self.disturbed, f"{job.job_id} rank {target.rank} is in reach"))
            case "slow rank":
                self.disturbed(f"{job.job_id} rank {target.rank} is slow for 4 s")
                job.tell(VerdictKind.COMPUTE_SLOW, target, 0.1, 0.4)
                job.tell(VerdictKind.RECOVERED, target, 4.0, 1.0)
            case "stop":
                job.stop(target, fault.lasts_seconds)
            case "kill":
                job.kill(target)

    def _strike_scheduler(self, scheduler: Scheduler, fault: Fault) -> None:
        if fault.kind == "crash":
            self.scheduler_ends(scheduler, f"scheduler {scheduler.name} dies")
        elif not scheduler.process.stopped:
            self.disturbed(f"scheduler {scheduler.name} stops for {fault.lasts_seconds} s")
            scheduler.process.stop()
            self.after(fault.lasts_seconds, lambda: self._go_on(scheduler))

    def _go_on(self, scheduler: Scheduler) -> None:
        self.disturbed(f"scheduler {scheduler.name} goes on")
        scheduler.process.go_on()

    # ---- a run

    async def run(self) -> Outcome:
        for _ in range(self.scenario.num_schedulers):
            self.start_scheduler()
        for job in self.jobs.values():
            self.until_taken(partial(_begun, job), 0.0, lambda: True)
        while self._errands and not self.broken:
            await asyncio.wait(self._errands, timeout=0.5)
        for job in self.jobs.values():
            job.start()
        for fault in self._timed:
            self.after(fault.seconds, partial(self._strike, fault))
        last = max([5.0, *(fault.seconds + fault.lasts_seconds for fault in self._timed)])
        while self.loop.now < max(last, self._last_disturbance) + CALM_SECONDS and not self.broken:
            await asyncio.sleep(0.5)
            if self._armed and self.loop.now > last + 5.0:
                self._armed.clear()
        if not self.broken:
            self._check_calm()
        num_steps = self.jobs["job-0"].num_steps
        return Outcome([*self.broken, *self.history.broken], num_steps, len(self.history.plans), self.trace)

    def _check_calm(self) -> None:
        if self.leader is None or self.leader.coordinator is None:
            self.broken.append("ends: nobody is in charge")
            return
        for job in self.jobs.values():
            view = self.leader.coordinator.job(job.job_id)
            if view is None:
                self.broken.append(f"ends: {job.job_id} is not served")
            else:
                job.check_calm(view)


async def _begun(job: SimulatedJob, fleet: Coordinator) -> None:
    await fleet.register_job(job.record)
    await _profile(job, fleet)


async def _profile(job: SimulatedJob, fleet: Coordinator) -> None:
    view = fleet.job(job.job_id)
    if view is not None:
        await fleet.tell(job.job_id, job.profile(view.known.epoch))
