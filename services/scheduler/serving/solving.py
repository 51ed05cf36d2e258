"""A job's question to the planner, and what answers it when the planner cannot: a death always has a plan."""

import asyncio
import time

import structlog

from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.search.solver import solve_at_once
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.services.scheduler.adapters.planner_process import PlannerAwayError
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed
from evenkeel.services.scheduler.jobs.events import Solved
from evenkeel.services.scheduler.jobs.job import Question
from evenkeel.services.scheduler.serving.parts import Parts

_log = structlog.get_logger(__name__)


async def solved(question: Question, parts: Parts) -> Solved:
    """The planner's answer, or a makeshift one where it fails, dies or is late."""
    started, known, is_makeshift = time.perf_counter(), question.known, False
    answer: Solution | NoPlanError
    try:
        situation = await asyncio.to_thread(known.situation, parts.transition)
        answer = await parts.planner.solve(situation, is_urgent=question.need is PlanNeed.RECOVER)
    except NoPlanError as error:
        answer = error
    except Exception as error:  # the boundary: whatever becomes of the planner, a death has a plan
        # One that says itself why it gave no answer needs no stack trace.
        trace = None if isinstance(error, PlannerAwayError) else error
        _log.warning("the plan is made without the planner", job_id=known.job_id, reason=str(error), exc_info=trace)
        parts.metrics.planner_failures.inc()
        answer, is_makeshift = await asyncio.to_thread(_solved_at_once, known, parts.transition, error), True
    return Solved(question, answer, time.perf_counter() - started, is_makeshift)


def _solved_at_once(known: JobKnowledge, transition: TransitionCosts, problem: Exception) -> Solution | NoPlanError:
    try:
        return solve_at_once(known.situation(transition))
    except NoPlanError as error:
        return error
    except Exception as error:  # the boundary: what one job's state does to the levers must not stop the others
        _log.exception("no plan without the planner either")
        return NoPlanError(f"the planner failed on this job ({problem}), and so did what stands in for it ({error!r})")
