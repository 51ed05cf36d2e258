"""Whether a solution is worth its cost in a job as it is now."""

from dataclasses import replace

from evenkeel.history.vocabulary import PlanMode
from evenkeel.planning.solution import Solution
from evenkeel.services.scheduler.domain.flips import num_flips
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.plans.decision import Decision, DecisionRule, decide


def weigh(
    job: JobKnowledge, solution: Solution, mode: PlanMode, rule: DecisionRule, now_unix_seconds: float
) -> Decision:
    """The choice, with what the job's history says of such plans.

    Args:
        job: The job.
        solution: What the planner found.
        mode: How it would be applied.
        rule: When a plan pays.
        now_unix_seconds: Now.
    """
    # How far plans fell short under which micro-batches got routes, or ranks several stages, says nothing of one that
    # ends these: it leads back to what the cost model was calibrated on, and must not be held off by that.
    levers = [action.lever for action in solution.actions if not action.is_over]
    # The way home leads to a layout that was measured: hindsight is about layouts that never ran.
    is_home = solution.layout.replicas == job.home.replicas and not solution.layout.routes
    decision = decide(
        rule,
        solution,
        forced=mode is PlanMode.RECOVER or bool(job.lost),
        num_flips=num_flips(job, now_unix_seconds),
        horizon_seconds=job.horizon_seconds(now_unix_seconds, rule.horizon_seconds),
        prediction_factor=1.0 if is_home else job.hindsight.factor_for(levers),
    )
    words = "" if is_home else job.hindsight.words(levers)
    return replace(decision, reason=f"{decision.reason} {words}".rstrip())
