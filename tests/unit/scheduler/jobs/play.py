"""One job on the machine, with nothing around it: what it saves and asks for is kept, and answered by hand."""

from datetime import UTC, datetime, timedelta

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from evenkeel.history.records import (
    CulpritRecord,
    JobRecord,
    JobStateRecord,
    PlanEventRecord,
    PlanRecord,
    RankRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import JobState, PlanState
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.search.solver import solve
from evenkeel.planning.solution import NoPlanError
from evenkeel.services.scheduler.dispatch.protocol import Decision
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import PlanInFlight
from evenkeel.services.scheduler.domain.profiles import JobProfile
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.job import Question, Timer
from evenkeel.services.scheduler.jobs.machine import on, registered_job
from evenkeel.services.scheduler.jobs.rules import Rules

HOME = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=16)
START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = Rules()
PROFILE = JobProfile(job_id="job", iteration=5, epoch=0, workload=WORKLOAD, iteration_seconds=1.7, throughputs={})


class Play:
    """A job of eight ranks, all of them registered and training."""

    def __init__(self, *, can_reshape: bool = True, registered: bool = True, profiled: bool = True) -> None:
        record = JobRecord(job_id="job", name="", model=gpt(6), layout=HOME, registered_at=START, job_token="x" * 16)
        self.job = registered_job(record, "salt")
        self.at = START
        self.states: dict[int, RankState] = {}
        self.saved: list[object] = []
        self.step = self.on(events.Began())
        self._num_verdicts = 0
        if registered:
            self.on(events.RanksRegistered(tuple(registration(rank, can_reshape=can_reshape) for rank in HOME.ranks)))
        if profiled:
            self.on(PROFILE)

    @property
    def known(self) -> JobKnowledge:
        return self.job.known

    @property
    def plan(self) -> PlanInFlight:
        assert self.job.known.flight is not None
        return self.job.known.flight

    @property
    def plan_states(self) -> dict[str, list[PlanState]]:
        """All that the history knows of plans, by id."""
        found = {one.plan_id: [PlanState.PROPOSED] for one in self.saved if isinstance(one, PlanRecord)}
        for one in self.saved:
            if isinstance(one, PlanEventRecord):
                found[one.plan_id].append(one.state)
        return found

    @property
    def said(self) -> JobState:
        """The state that the history knows."""
        told = [one.state for one in self.saved if isinstance(one, JobStateRecord)]
        return told[-1] if told else JobState.RUNNING

    def on(self, event: events.Event) -> steps.Step:
        self.at += timedelta(milliseconds=10)
        self.step = on(self.job, event, steps.Moment(at=self.at, states=self.states, rules=RULES))
        self.job = self.step.job
        self.saved += self.step.save
        return self.step

    def say(self, kind: str, rank: int, *, incarnation: int = 0, throughput: float = 0.0) -> steps.Step:
        self._num_verdicts += 1
        verdict = VerdictRecord(
            verdict_id=f"v{self._num_verdicts}",
            job_id="job",
            kind=kind,
            culprits=(CulpritRecord(rank=rank, incarnation=incarnation, node="n", device=f"d{rank}"),),
            throughput=throughput,
            throughput_margin=0.01,
            confidence=0.99,
            first_iteration=3,
            decided_iteration=5,
            decided_at=self.at,
        )
        return self.on(events.VerdictsTaken((verdict,)))

    def solved(self, question: Question | None = None) -> steps.Step:
        """The planner answers, the last question or an earlier one."""
        (question,) = self.step.meanwhile if question is None else (question,)
        try:
            return self.on(events.Solved(question, solve(question.known.situation(TransitionCosts())), 0.01))
        except NoPlanError as error:
            return self.on(events.Solved(question, error, 0.01))

    def agreed(self) -> steps.Step:
        decision = Decision(from_epoch=self.known.epoch, from_layout=self.known.layout, sources=(), steps_applied=7)
        return self.on(events.Agreed(self.plan.record.plan_id, decision))

    def applied(self) -> steps.Step:
        return self.on(events.Applied(self.plan.record.plan_id, 7))

    def carried_out(self) -> steps.Step:
        """What the planner answers becomes the layout in force."""
        self.solved()
        self.agreed()
        return self.applied()

    def failed(self, error: Exception) -> steps.Step:
        return self.on(events.Failed(self.plan.record.plan_id, error))  # type: ignore[arg-type]

    def fire(self, key: Timer) -> steps.Step:
        self.at += timedelta(seconds=RULES.verdict_seconds)
        return self.on(events.TimerFired(key))

    def park(self, *ranks: int) -> None:
        for rank in ranks:
            self.states[rank] = state_of(rank, RankPhase.PARKED, self.known.epoch)
            self.on(events.Parked())

    def timers_set(self) -> list[Timer]:
        return [one.key for one in self.step.then if isinstance(one, steps.SetTimer)]


def registration(rank: int, incarnation: int = 0, *, can_reshape: bool = True) -> RankRecord:
    return RankRecord(
        job_id="job",
        rank=rank,
        incarnation=incarnation,
        node="n",
        device=f"d{rank}",
        address=f"127.0.0.1:{5000 + 10 * rank + incarnation}",
        process_id=1,
        registered_at=START,
        can_reshape=can_reshape,
    )


def state_of(rank: int, phase: RankPhase, epoch: int = 0) -> RankState:
    return RankState(rank=rank, incarnation=0, phase=phase, epoch=epoch, iteration=6, steps_applied=6)
