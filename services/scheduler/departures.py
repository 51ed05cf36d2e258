"""What a plan needs before it goes to the ranks: the planner's answer, the choice, and who carries it there.

Nothing here changes a job's state; the job's actor does, with what it gets here.
"""

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

import structlog

from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.planning.search.solver import solve
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import RankCalls, Reshape
from evenkeel.services.scheduler.dispatch.two_phase import Flight
from evenkeel.services.scheduler.domain.flips import num_flips
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanInFlight
from evenkeel.services.scheduler.parts import Parts
from evenkeel.services.scheduler.plans.decision import Decision, decide
from evenkeel.services.scheduler.plans.taken_up import taken_up

_log = structlog.get_logger(__name__)

Answer = asyncio.Task[tuple[Solution | NoPlanError, float]]
"""What :func:`solved` gives, on its way."""


async def solved(job: JobKnowledge, parts: Parts) -> tuple[Solution | NoPlanError, float]:
    """The planner's answer and the seconds that it took; off the loop, since it may take tens of milliseconds."""
    started = time.perf_counter()
    answer: Solution | NoPlanError
    try:
        answer = await asyncio.to_thread(solve, job.situation(parts.transition))
    except NoPlanError as error:
        answer = error
    except Exception as error:  # the boundary: what the planner trips over in one job must not stop the others
        _log.exception("the planner failed", job_id=job.job_id)
        answer = NoPlanError(f"the planner failed on this job ({type(error).__name__}: {error}); the log has more")
    return answer, time.perf_counter() - started


def weigh(job: JobKnowledge, solution: Solution, mode: PlanMode, parts: Parts) -> Decision:
    """Whether a solution is worth its cost now."""
    levers = taken_up(solution)
    # The way home leads to a layout that was measured: hindsight is about layouts that never ran.
    is_home = solution.layout.replicas == job.home.replicas and not solution.layout.routes
    decision = decide(
        parts.rule,
        solution,
        forced=mode is PlanMode.RECOVER or bool(job.lost),
        num_flips=num_flips(job, parts.clock()),
        horizon_seconds=job.horizon_seconds(parts.clock(), parts.rule.horizon_seconds),
        prediction_factor=1.0 if is_home else job.hindsight.factor_for(levers),
    )
    words = "" if is_home else job.hindsight.words(levers)
    return replace(decision, reason=f"{decision.reason} {words}".rstrip())


def new_flight(job: JobKnowledge, solution: Solution, mode: PlanMode, parts: Parts) -> PlanInFlight:
    """A plan that takes off now, in the next epoch that was never used."""
    epoch = job.top_epoch + 1
    return PlanInFlight(
        plan_id=f"{job.job_id}-{epoch}-{uuid.uuid4().hex[:8]}",
        mode=mode,
        epoch=epoch,
        layout=solution.layout,
        incident_id=job.cause,
        started_at_unix_seconds=parts.clock(),
        throughputs=job.usable,
    )


def flight_again(plan: PlanRecord) -> PlanInFlight:
    """A plan that was decided before the scheduler restarted."""
    return PlanInFlight(
        plan_id=plan.plan_id,
        mode=plan.mode,
        epoch=plan.epoch,
        layout=plan.layout,
        incident_id=plan.incident_id,
        started_at_unix_seconds=plan.proposed_at.timestamp(),
        throughputs=plan.throughputs or {},
    )


def dispatch_of(
    job: JobKnowledge, flight: PlanInFlight, calls: Mapping[int, RankCalls], board: StateBoard, parts: Parts
) -> Flight:
    """Who takes a plan to the ranks that it concerns, and tells all others of ``calls``."""
    concerned = {*job.layout.ranks, *flight.layout.ranks}
    reshape = Reshape(
        job_id=job.job_id,
        plan_id=flight.plan_id,
        epoch=flight.epoch,
        mode=flight.mode,
        to_layout=flight.layout,
        term=parts.leadership.term,
    )
    return Flight(
        reshape=reshape,
        model=job.model,
        epoch=job.epoch,
        layout=job.layout,
        layouts=job.layouts,
        calls={rank: each for rank, each in calls.items() if rank in concerned},
        others={rank: each for rank, each in calls.items() if rank not in concerned},
        board=board,
        times=parts.times,
    )
