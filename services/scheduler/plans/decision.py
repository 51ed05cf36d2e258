"""Does a plan pay? Gain over the time that it is likely to be of use, against what applying it costs.

A device whose state keeps flipping makes every plan for it short-lived. So the horizon is halved for each flip of a
culprit within the memory: a plan for a device that flips every minute must pay back within seconds, and the job stays
on the layout that it has. With someone dead there is no choice.
"""

from dataclasses import dataclass
from enum import StrEnum

from evenkeel.planning.solution import Solution


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
    if forced:
        return Decision(
            choice=Choice.APPLY,
            gain_seconds=horizon,
            cost_seconds=cost,
            horizon_seconds=horizon,
            reason="The layout in force cannot go on.",
        )
    if not solution.changes:
        return Decision(
            choice=Choice.KEEP,
            gain_seconds=0.0,
            cost_seconds=0.0,
            horizon_seconds=horizon,
            reason="No layout is faster than the one in force.",
        )
    relative = 1.0 - prediction_factor * solution.predicted_seconds / solution.idle_seconds
    relative = max(relative, solution.judged_gain)
    gain = relative * horizon
    if relative < rule.min_gain:
        choice, why = (
            Choice.KEEP,
            f"it saves {100 * relative:.1f} % per iteration, less than {100 * rule.min_gain:.0f} %",
        )
    elif gain <= rule.safety * cost:
        choice, why = Choice.KEEP, f"it saves {gain:.1f} s in {horizon:.0f} s and costs {cost:.1f} s"
    else:
        choice, why = Choice.APPLY, f"it saves {gain:.1f} s in {horizon:.0f} s and costs {cost:.1f} s"
    verb = "pays" if choice is Choice.APPLY else "does not pay"
    flips = f" (horizon halved {num_flips} times: the device flips)" if num_flips else ""
    return Decision(
        choice=choice,
        gain_seconds=gain,
        cost_seconds=cost,
        horizon_seconds=horizon,
        reason=f"The plan {verb}: {why}{flips}.",
    )
