"""What a lever is: one way to win back throughput, able to say which layouts it leads to."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum, auto
from typing import TYPE_CHECKING, ClassVar

from evenkeel.layouts.layout import Layout
from evenkeel.planning.situation import Situation

if TYPE_CHECKING:
    from evenkeel.planning.search.candidate import Candidate


class Asked(IntEnum):
    """When a lever is asked; what the earlier ones led to is where the later ones begin."""

    MEMBERS = auto()
    """Who takes part. These alone answer when there is no time for a search."""

    SHAPE = auto()
    """Who works where."""

    SPARES = auto()
    """What becomes of ranks that are left over, in each of the shapes."""

    STEPS = auto()
    """Small changes of what is fastest so far, in jobs of few stages."""

    SCHEDULE = auto()
    TUNING = auto()
    """Widths, splits, quotas and sizes, solved together (:mod:`evenkeel.planning.levers.balance.tuning`)."""

    POLISH = auto()
    """Tried on few of the fastest."""


class Lever(ABC):
    """One way to win back throughput. A file in this folder that has one is all that the search needs.

    A lever proposes layouts; what each is predicted to take and what going there costs is the situation's to say, the
    same for all levers, so that they can be compared and composed.

    Attributes:
        name: As plans and history show it.
        asked: When, and its place among those asked then.
        leads_on: False where what it leads to leaves ranks over that fit nowhere: no lever for spares begins there.
        is_asked_again: Whether it deals ranks anew once the fastest layout is tuned.
    """

    name: ClassVar[str]
    asked: ClassVar[tuple[Asked, int]]
    leads_on: ClassVar[bool] = True
    is_asked_again: ClassVar[bool] = False

    def is_possible(self, situation: Situation) -> bool:
        """False where it changes nothing: the job's engine does not run what it leads to."""
        return True

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """Layouts that this lever alone leads to from ``base``, which names live ranks only. Best first, maybe none.

        None where the search sets it together with others, as it does schedules and all that is tuned.
        """
        return ()

    @abstractmethod
    def describe(self, before: Layout, after: Layout) -> str:
        """One line for a person: what this lever changed between two layouts; empty when nothing."""

    def undone(self, before: Layout, after: Layout) -> Layout:
        """``after`` without what this lever did; ``before`` where it only took back what was there."""
        return before

    def starts(
        self, situation: Situation, weighed: Sequence["Candidate"], *, thoroughly: bool
    ) -> Iterator[tuple["Candidate", Layout]]:
        """For one that polishes: layouts to try it on, each with the candidate that it was made of.

        Args:
            situation: The question.
            weighed: All that was weighed so far.
            thoroughly: Try it on more of them; there is time for that in small jobs.
        """
        return iter(())
