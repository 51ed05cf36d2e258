"""Layouts that the solver weighs."""

from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers import REGISTRY, Asked, asked_at
from evenkeel.planning.pipelined.virtual import bare


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A layout that was weighed.

    Attributes:
        structural_levers: Names of the levers that led to the structure.
        layout: It.
        base: The structure that it was tuned from.
        other_levers: Names of those that make it another one than that in force in something that is not tuned either.
        seconds: Predicted seconds per iteration.
        judged: The same with the margin for structural risks; infinite when it does not fit the devices' memory.
        excess_bytes: What the fullest device has too little memory for.
    """

    structural_levers: tuple[str, ...]
    layout: Layout
    base: Layout
    other_levers: tuple[str, ...]
    seconds: float
    judged: float
    excess_bytes: float

    @property
    def levers(self) -> tuple[str, ...]:
        """Names of all levers that led to it: tuning levers are those that say what they changed."""
        plain = bare(self.layout)
        tuned = [lever.name for lever in asked_at(Asked.TUNING) if lever.describe(self.base, plain)]
        rest = sorted([*tuned, *self.other_levers], key=lambda name: REGISTRY[name].asked)
        return *self.structural_levers, *rest
