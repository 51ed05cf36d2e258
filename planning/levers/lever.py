"""What a lever is: one way to win back throughput, able to say which layouts it leads to."""

from collections.abc import Iterable
from typing import Protocol

from evenkeel.layouts.layout import Layout
from evenkeel.planning.situation import Situation


class Lever(Protocol):
    """One way to win back throughput.

    A lever proposes layouts; what each is predicted to take is ``situation.cost.iteration_seconds`` and what going
    there costs is ``situation.price``, the same for all levers, so that they can be compared and composed.

    Attributes:
        name: Name in the registry, as plans and history show it.
        structural: True when it changes which ranks work where; False when it only tunes a given structure.
    """

    name: str
    structural: bool

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """Layouts that this lever alone leads to from ``base``, which names live ranks only. Best first, maybe none."""
        ...

    def describe(self, before: Layout, after: Layout) -> str:
        """One line for a person: what this lever changed between two layouts; empty when nothing."""
        ...
