"""Does a plan pay? Gain over the time that it is likely to be of use, against what applying it costs.

A device whose state keeps flipping makes every plan for it short-lived. So the horizon is halved for each flip of a
culprit within the memory: a plan for a device that flips every minute must pay back within seconds, and the job stays
on the layout that it has. With someone dead there is no choice.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from evenkeel.history.vocabulary import PlanMode
from evenkeel.planning.solution import Solution
from evenkeel.services.scheduler.domain.job_state import SAME_THROUGHPUT, JobKnowledge
from evenkeel.services.scheduler.plans.outlook import FLIP_MEMORY_SECONDS


class Choice(StrEnum):
    """What to do with a solution."""

    APPLY = "apply"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """When a plan pays.

    Attributes:
        horizon_seconds: How long a plan is expected to be of use where nothing has been learned and nothing flips.
        min_gain: Smallest relative gain per iteration worth an epoch.
        safety: The gain over the horizon must exceed the cost by this factor.
    """

    horizon_seconds: float = 600.0
    min_gain: float = 0.02
    safety: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The choice with its numbers.

    Attributes:
        choice: Apply or keep.
        gain_seconds: Training time won over the horizon.
        cost_seconds: Training time lost to applying it.
        horizon_seconds: The horizon after hysteresis.
        reason: One sentence.
    """

    choice: Choice
    gain_seconds: float
    cost_seconds: float
    horizon_seconds: float
    reason: str


def decide(
    rule: DecisionRule,
    solution: Solution,
    *,
    forced: bool,
    num_flips: int = 0,
    horizon_seconds: float | None = None,
    prediction_factor: float = 1.0,
) -> Decision:
    """Whether to apply a solution.

    Args:
        rule: The rule.
        solution: What the solver found.
        forced: True when the layout in force cannot go on.
        num_flips: How often the culprits changed between slow and healthy lately, beyond the first time.
        horizon_seconds: How long the plan is expected to be of use, as learned; None = the rule's.
        prediction_factor: Measured over predicted seconds of the job's plans so far.
    """
    cost = solution.price.pause_seconds
    horizon = (rule.horizon_seconds if horizon_seconds is None else horizon_seconds) / 2.0 ** min(num_flips, 60)
    gain, flips = 0.0, f" (horizon halved {num_flips} times: the device flips)" if num_flips else ""
    if forced:
        choice, gain, reason = Choice.APPLY, horizon, "The layout in force cannot go on."
    elif not solution.changes:
        choice, cost, reason = Choice.KEEP, 0.0, "No layout is faster than the one in force."
    else:
        relative = 1.0 - prediction_factor * solution.predicted_seconds / solution.idle_seconds
        relative = max(relative, solution.judged_gain)
        gain = relative * horizon
        why, pays = f"it saves {gain:.1f} s in {horizon:.0f} s and costs {cost:.1f} s", gain > rule.safety * cost
        if relative < rule.min_gain:
            why = f"it saves {100 * relative:.1f} % per iteration, less than {100 * rule.min_gain:.0f} %"
            pays = False
        choice = Choice.APPLY if pays else Choice.KEEP
        reason = f"The plan {'pays' if pays else 'does not pay'}: {why}{flips}."
    return Decision(
        choice=choice,
        gain_seconds=gain,
        cost_seconds=cost,
        horizon_seconds=horizon,
        reason=reason,
    )


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
        num_flips=flips_of(job, now_unix_seconds),
        horizon_seconds=job.outlook.horizon_seconds(
            now_unix_seconds=now_unix_seconds,
            prior_seconds=rule.horizon_seconds,
            num_devices=len(job.home.ranks) + len(job.home.standbys),
            observed_seconds=now_unix_seconds - job.registered_at.timestamp(),
        ),
        prediction_factor=1.0 if is_home else job.hindsight.factor_for(levers),
    )
    words = "" if is_home else job.hindsight.words(levers)
    return replace(decision, reason=f"{decision.reason} {words}".rstrip())


def flips_of(job: JobKnowledge, now_unix_seconds: float) -> int:
    """How often a rank that the next plan is for has flipped lately, beyond its first slow and its first recovery.

    A plan is for the ranks that are not as the layout in force was planned for; it is as lasting as the steadiest of
    them, so a device that flips stands in nobody else's way. For no such rank, the job's most restless one counts.
    """
    counts = {
        rank: max(0, sum(1 for at in times if now_unix_seconds - at < FLIP_MEMORY_SECONDS) - 2)
        for rank, times in job.outlook.flips.items()
    }
    usable, unknown = job.usable, 0.0 if job.answered else 1.0
    others = [
        rank
        for rank in sorted({*usable, *job.answered, *job.layout.ranks})
        if abs(usable.get(rank, 0.0) - job.answered.get(rank, unknown)) > SAME_THROUGHPUT
    ]
    return min([counts.get(rank, 0) for rank in others], default=max(counts.values(), default=0))
