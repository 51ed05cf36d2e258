"""What the solver answers: the best layout, the bound, what else was weighed, and why, as data and in words."""

from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.price import Price

TIE = 0.005
"""Relative difference below which two layouts count as equally fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One lever pulled.

    Attributes:
        lever: Its name in the registry.
        description: One line for a person.
        gain_seconds: Seconds per iteration that this lever alone saves.
        is_over: What it had done before is taken back, and nothing else done by it.
    """

    lever: str
    description: str
    gain_seconds: float
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A layout that lost.

    Attributes:
        name: Levers, joined by " + ".
        predicted_seconds: Seconds per iteration.
        reason: Why it lost, one line.
    """

    name: str
    predicted_seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best layout for a situation.

    Attributes:
        layout: The layout; the one in force when nothing better exists.
        changes: False when it is the layout in force.
        idle_seconds: Per iteration when nothing is done; 0 when that cannot be.
        predicted_seconds: Per iteration under ``layout``.
        bound_seconds: Per iteration that no layout can beat: healthy time over the proportional bound.
        proportional_bound: Sum of live throughputs over the number of devices.
        price: What going there costs.
        actions: Levers pulled, in the order in which they were composed.
        alternatives: Other layouts, fastest first.
        reason: One paragraph.
        judged_gain: When everybody is healthy: what going to ``layout`` saves of an iteration, relatively, with the
            margin for structural risks on both sides; else 0. The full shape is gone back to for this, also where a
            handful of iterations cannot tell it from the layout in force.
    """

    layout: Layout
    changes: bool
    idle_seconds: float
    predicted_seconds: float
    bound_seconds: float
    proportional_bound: float
    price: Price
    actions: tuple[Action, ...]
    alternatives: tuple[Alternative, ...]
    reason: str
    judged_gain: float = 0.0


class NoPlanError(ValueError):
    """No layout can be made of the ranks that are left; the message says what is missing."""
