"""Layouts that the solver weighs."""

from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers import REGISTRY
from evenkeel.planning.levers.balance.tuning import TUNING
from evenkeel.planning.pipelined.virtual import bare

SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A layout that was weighed.

    Attributes:
        structural_levers: Names of the levers that led to the structure.
        layout: It.
        base: The structure that it was tuned from.
        last_levers: Names of those that changed it after it was tuned.
        seconds: Predicted seconds per iteration.
        judged: The same with the margin for structural risks; infinite when it does not fit the devices' memory.
        excess_bytes: What the fullest device has too little memory for.
    """

    structural_levers: tuple[str, ...]
    layout: Layout
    base: Layout
    last_levers: tuple[str, ...]
    seconds: float
    judged: float
    excess_bytes: float

    @property
    def levers(self) -> tuple[str, ...]:
        """Names of all levers that led to it: tuning levers are those that say what they changed."""
        plain = bare(self.layout)
        tuned = [name for name in TUNING if REGISTRY[name].describe(self.base, plain)]
        return *self.structural_levers, *tuned, *self.last_levers


def same(one: Layout, other: Layout) -> bool:
    """True when everybody does the same under both; standbys do nothing."""
    same = one.mix == other.mix and one.schedule == other.schedule and one.routes == other.routes
    return same and one.replicas == other.replicas
