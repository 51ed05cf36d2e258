"""Plays the script: does what a step says, waits for its conditions, writes down what was done and what was missed."""

import asyncio
import time
from collections.abc import Callable, Sequence

from evenkeel.demo.observed.observations import StepOutcome
from evenkeel.demo.observed.run_log import RunLog
from evenkeel.demo.observed.truths import Truth, TruthKind
from evenkeel.demo.script.conditions import Moment
from evenkeel.demo.script.hands import Hands
from evenkeel.demo.script.scenario import Act, Step

POLL_SECONDS = 0.05
SERVICES = {Act.KILL_DETECTOR: "detector", Act.KILL_SCHEDULER: "scheduler"}
TRUTHS = {
    Act.LONG_DOCUMENTS: TruthKind.LONG_DOCUMENTS,
    Act.SLOW: TruthKind.COMPUTE_SLOW,
    Act.HEAL: TruthKind.RECOVERED,
    Act.KILL_RANK: TruthKind.FAIL_STOP,
    Act.REPLACE_RANK: TruthKind.REJOINED,
    Act.KILL_DETECTOR: TruthKind.DETECTOR_KILLED,
    Act.KILL_SCHEDULER: TruthKind.SCHEDULER_KILLED,
}
STANDSTILL_SECONDS = 25.0
"""After a step has failed: without a new iteration for so long, the rest of the script is not played."""


class Director:
    """Plays a script on one event loop.

    Args:
        log: What the recorder sees.
        hands: What may be done.
        on_step: Called at the beginning of each step.
        clock: Unix seconds.
    """

    def __init__(
        self,
        log: RunLog,
        hands: Hands,
        *,
        on_step: Callable[[Step], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._hands = hands
        self._on_step = on_step
        self._clock = clock
        self._incarnations: dict[int, int] = {}
        self._last_progress = (-1, clock())
        self.truths: list[Truth] = []
        self.outcomes: list[StepOutcome] = []

    async def play(self, steps: Sequence[Step]) -> None:
        """Play all steps; a step that times out is written down and the next one begins."""
        stopped = ""
        for step in steps:
            if step.delay_seconds and not stopped:
                await asyncio.sleep(step.delay_seconds)
            began = self._moment()
            if stopped:
                self.outcomes.append(
                    StepOutcome(step=step, began=began, ended_at=began.at, missing=(f"not played: {stopped}",))
                )
                continue
            self._on_step(step)
            self._act(step, began)
            missing = await self._wait(step, began)
            self.outcomes.append(StepOutcome(step=step, began=began, ended_at=self._clock(), missing=tuple(missing)))
            stopped = self._hands.trouble() or (self._standstill() if missing else "")

    def _moment(self) -> Moment:
        return Moment(at=self._clock(), iteration=self._log.last_iteration + 1, epoch=max(self._log.last_epoch, 0))

    def _act(self, step: Step, began: Moment) -> None:
        throughput: float | None = None
        incarnation: int | None = None
        if step.rank is not None:
            incarnation = self._incarnations.get(step.rank, 0)
        match step.act, step.rank:
            case Act.SLOW, int(rank):
                throughput = step.speed if step.speed is not None else 1.0
                self._hands.slow(rank, throughput)
            case Act.HEAL, int(rank):
                throughput = 1.0
                self._hands.slow(rank, throughput)
            case Act.KILL_RANK, int(rank):
                throughput = 0.0
                self._hands.kill(rank)
            case Act.REPLACE_RANK, int(rank):
                throughput = 1.0
                incarnation = self._incarnations[rank] = self._incarnations.get(rank, 0) + 1
                self._hands.replace(rank)
            case ((Act.KILL_DETECTOR | Act.KILL_SCHEDULER), _):
                self._hands.kill_service(SERVICES[step.act])
        if step.act in TRUTHS:
            self.truths.append(
                Truth(
                    kind=TRUTHS[step.act],
                    at=began.at,
                    iteration=began.iteration,
                    epoch=began.epoch,
                    rank=step.rank,
                    incarnation=incarnation,
                    throughput=throughput,
                )
            )

    async def _wait(self, step: Step, began: Moment) -> list[str]:
        """Wait until nothing is missing or time is up; what is missing then."""
        service = SERVICES.get(step.act)
        service_back = service is None
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._note_progress()
            if service is not None and not service_back:
                service_back = await asyncio.to_thread(self._hands.service_ready, service)
            missing = [condition.describe() for condition in step.until if not condition.holds(self._log, began)]
            if not service_back:
                missing.append(f"the {service} is ready again")
            over = self._clock() - began.at > step.timeout_seconds
            trouble = self._hands.trouble()
            if not missing or over or trouble:
                return missing

    def _note_progress(self) -> None:
        if self._log.last_iteration > self._last_progress[0]:
            self._last_progress = (self._log.last_iteration, self._clock())

    def _standstill(self) -> str:
        seconds = self._clock() - self._last_progress[1]
        return f"no iteration for {seconds:.0f} s" if seconds > STANDSTILL_SECONDS else ""
