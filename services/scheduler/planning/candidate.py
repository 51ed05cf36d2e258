"""Layouts that the solver weighs."""

from dataclasses import dataclass

from layouts.layout import Layout
from services.scheduler.planning.levers import REGISTRY

SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A layout that was weighed.

    Attributes:
        levers: Names of the levers that led to it.
        layout: It.
        base: The structure that it was tuned from.
        seconds: Predicted seconds per iteration.
        judged: The same with the margin for structural risks; infinite when it does not fit the devices' memory.
        excess_bytes: What the fullest device has too little memory for.
    """

    levers: tuple[str, ...]
    layout: Layout
    base: Layout
    seconds: float
    judged: float
    excess_bytes: float

    @property
    def structural_levers(self) -> tuple[str, ...]:
        """Those of the levers that led to the structure."""
        return tuple(name for name in self.levers if REGISTRY[name].structural or name == SCHEDULE)


def same(one: Layout, other: Layout) -> bool:
    """True when everybody does the same under both; standbys do nothing."""
    same = one.mix == other.mix and one.schedule == other.schedule and one.routes == other.routes
    return same and one.replicas == other.replicas
