"""Whether this scheduler is in charge: what everything that acts on ranks asks first."""

from dataclasses import dataclass
from typing import Protocol


class Leadership(Protocol):
    """The place of this process among those that could be in charge."""

    @property
    def term(self) -> int:
        """Grows with each change of hands; 0 = it was never in charge."""
        ...

    @property
    def holds(self) -> bool:
        """Whether it is certain that nobody else is in charge now."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """There is nobody else."""

    term: int = 0
    holds: bool = True
